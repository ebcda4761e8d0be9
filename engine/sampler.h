#pragma once

#include <cstdint>
#include <span>

namespace sparsellm {

// How the next token is chosen, in this order: the logits are divided by the temperature, the top_k
// largest are kept, of these the smallest set with probability >= top_p, of these the ones with at
// least min_p times the probability of the largest; one is drawn. (Hugging Face's order; llama.cpp
// applies the temperature last.)
struct SamplingParams {
  float temperature = 0.0f;  // 0: greedy, the largest logit, the smaller id if equal
  int32_t top_k = 0;         // 0: all
  float top_p = 1.0f;        // in (0, 1]
  float min_p = 0.0f;        // in [0, 1]
};

// Throws Error naming the first value that is out of range.
void validate(const SamplingParams& params);

// The id chosen from logits [vocabulary]. `banned` ids have probability 0. The draw is a pure
// function of `seed` and `index` (the number of tokens of the request so far), whatever else is
// sampled and in whatever order. Throws Error if a logit is NaN or none is left.
int32_t sample_token(std::span<const float> logits, const SamplingParams& params,
                     std::span<const int32_t> banned, uint64_t seed, int64_t index);

}  // namespace sparsellm
