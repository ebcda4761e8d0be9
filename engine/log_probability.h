#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sparsellm {

struct LogProbs;  // kernels/log_probs.h

// ln softmax(logits)[id], with the sum of the exponentials taken in blocks in double. NaN if a
// logit is NaN or +infinity, or if all are -infinity. Throws Error if the id is not in the
// vocabulary.
double log_probability(std::span<const float> logits, int32_t id);

struct TokenLogProb {
  int32_t token = 0;
  float log_prob = 0.0f;
};

// A token and the likeliest ones at its place, the likeliest first, the smaller id of equal
// logits; NaNs come last.
struct TokenLogProbs {
  TokenLogProb token;
  std::vector<TokenLogProb> top;
};

inline constexpr int32_t kMaxTopLogProbs = 100;

// What a device has told of a row whose logits are finite, with `top` of the likeliest tokens or as
// many as the vocabulary has.
TokenLogProbs token_log_probs(const LogProbs& told, int32_t top, int64_t vocabulary);

// ln softmax(logits) as above of `token` and of the `top` largest logits (fewer if there are
// fewer). Throws Error if `token` is not in the vocabulary or `top` not in [0, kMaxTopLogProbs].
TokenLogProbs token_log_probs(std::span<const float> logits, int32_t token, int32_t top);

}  // namespace sparsellm
