#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace sparsellm {

// Lengths that are drawn uniformly, both ends included.
struct LengthRange {
  int64_t min = 0;
  int64_t max = 0;

  bool is_fixed() const { return min == max; }
};

// Numbers that are the same wherever a benchmark is built: what the standard library makes of a
// generator's bits is its own affair.
class BenchRandom {
 public:
  explicit BenchRandom(uint64_t seed) : state_(seed) {}

  double uniform();                           // in [0, 1)
  int64_t uniform(int64_t min, int64_t max);  // both included
  double exponential(double rate);            // of mean 1 / rate

 private:
  uint64_t
  next();  // SplitMix64 (Steele et al., Fast Splittable Pseudorandom Number Generators, 2014)

  uint64_t state_;
};

// A prompt of random tokens that is continued greedily by exactly `output` tokens.
Request random_request(BenchRandom& random, int64_t vocab_size, int64_t prompt, int64_t output);

// Gives a request what is computed beside the choice of its tokens: penalties, biases, and the
// log-probabilities of its tokens and of the five likeliest at each place.
void adjust_request(Request& request);

// The log-probabilities of the prompt's tokens, as evaluations ask for them.
void score_prompt(Request& request);

// The requests of one measurement: however it ends, none of them is left in the engine.
class OpenRequests {
 public:
  explicit OpenRequests(Engine& engine) : engine_(engine) {}
  ~OpenRequests();
  OpenRequests(const OpenRequests&) = delete;
  OpenRequests& operator=(const OpenRequests&) = delete;

  void submit(Request request, OnToken on_token) {
    ids_.push_back(engine_.submit(std::move(request), std::move(on_token)));
  }

 private:
  Engine& engine_;
  std::vector<int64_t> ids_;
};

}  // namespace sparsellm
