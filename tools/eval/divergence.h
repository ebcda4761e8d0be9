#pragma once

#include <cstdint>
#include <span>

namespace sparsellm {

// What one model says about the next token.
struct Prediction {
  double log_prob = 0.0;         // ln softmax(logits) of the token that follows in the text
  int32_t top = 0;               // the likeliest token, the smallest id of equals
  double top_probability = 0.0;  // in (0, 1]
};

struct Divergence {
  double kl = 0.0;  // KL(p || q) = sum p ln(p / q), in nats; >= 0, and 0 for equal logits
  // p's logit of its own likeliest token less that of q's: how far from the largest logit the
  // choice of q is. 0 if they choose the same.
  double top1_gap = 0.0;
  Prediction p;
  Prediction q;
};

// p = softmax(p_logits), q = softmax(q_logits), in double. The logits are finite and as many on
// both sides, and `next` is one of their indices.
Divergence divergence(std::span<const float> p_logits, std::span<const float> q_logits,
                      int32_t next);

}  // namespace sparsellm
