#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampler.h"
#include "kernels/adjust_logits.h"

namespace sparsellm {

// Whether adjusted_logits() can differ from the logits.
bool adjusts_logits(const SamplingParams& params, const TokenHistory& history);

// The logits [vocabulary] after logit_bias, repetition, frequency and presence penalty, as
// SamplingParams defines them. Ids outside the vocabulary are passed over. Infinite logits stay as
// they are; finite ones stay finite, at the largest float where one is exceeded. Time and memory
// are linear in vocabulary and history.
std::vector<float> adjusted_logits(std::span<const float> logits, const SamplingParams& params,
                                   const TokenHistory& history);

Penalties penalties_of(const SamplingParams& params);

// The tokens of a sequence whose logits are adjusted, kept up as it grows: those with a bias, and
// those that a penalty counts. No token is there twice; ids outside the vocabulary are passed over.
class LogitAdjustments {
 public:
  // Takes nothing before count() is called. The parameters outlive it.
  LogitAdjustments(const SamplingParams& params, int64_t vocabulary)
      : params_(&params), vocabulary_(vocabulary) {}

  // The most that there can be when a sequence with a prompt of this length has grown to `length`.
  static int64_t most(const SamplingParams& params, int64_t prompt_length, int64_t length);

  // Goes on to all of the history, which begins with that of the call before.
  void count(const TokenHistory& history);

  std::span<const LogitAdjustment> all() const { return all_; }

 private:
  void add_biases();
  LogitAdjustment& of(int32_t token);
  bool has(int32_t token) const { return token >= 0 && token < vocabulary_; }

  const SamplingParams* params_;
  int64_t vocabulary_;
  bool has_biases_ = false;
  int64_t counted_ = 0;  // tokens of the history
  std::vector<LogitAdjustment> all_;
  std::vector<int32_t> places_;  // of each id in `all_`, or -1; empty until the first is looked up
};

}  // namespace sparsellm
