#pragma once

#include <cstdint>
#include <span>

namespace sparsellm {

// ln softmax(logits)[id], with the sum of the exponentials taken in blocks in double. NaN if a
// logit is NaN.
double log_probability(std::span<const float> logits, int32_t id);

}  // namespace sparsellm
