#include "tools/bench/requests.h"

#include <cmath>

namespace sparsellm {

double BenchRandom::uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

int64_t BenchRandom::uniform(int64_t min, int64_t max) {
  const double count = static_cast<double>(max - min) + 1.0;
  return min + static_cast<int64_t>(uniform() * count);
}

double BenchRandom::exponential(double rate) { return -std::log1p(-uniform()) / rate; }

uint64_t BenchRandom::next() {
  state_ += 0x9e3779b97f4a7c15u;
  uint64_t x = state_;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

Request random_request(BenchRandom& random, int64_t vocab_size, int64_t prompt, int64_t output) {
  Request request;
  request.prompt.reserve(static_cast<size_t>(prompt));
  for (int64_t i = 0; i < prompt; ++i) {
    request.prompt.push_back(static_cast<int32_t>(random.uniform(0, vocab_size - 1)));
  }
  request.max_tokens = output;
  request.ignore_eos = true;
  return request;
}

void adjust_request(Request& request) {
  constexpr int32_t kTop = 5;
  request.sampling.repetition_penalty = 1.1f;
  request.sampling.frequency_penalty = 0.2f;
  request.sampling.presence_penalty = 0.1f;
  request.sampling.logit_bias = {{1, -1.0f}, {3, 0.5f}, {7, 2.0f}};
  request.log_probs = kTop;
}

void score_prompt(Request& request) {
  request.log_probs = 1;
  request.prompt_log_probs = true;
}

OpenRequests::~OpenRequests() {
  for (int64_t id : ids_) {
    engine_.cancel(id);
  }
}

}  // namespace sparsellm
