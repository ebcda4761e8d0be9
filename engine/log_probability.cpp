#include "engine/log_probability.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"
#include "kernels/base/simd.h"

namespace sparsellm {

double log_probability(std::span<const float> logits, int32_t id) {
  require(id >= 0 && static_cast<size_t>(id) < logits.size(),
          "token id {} is outside the vocabulary of {}", id, logits.size());
  const float largest = *std::max_element(logits.begin(), logits.end());
  const F32x8 offset = F32x8::all(largest);
  constexpr size_t kBlock = 64 * F32x8::kWidth;  // short enough for sums in f32
  double total = 0.0;
  for (size_t first = 0; first < logits.size(); first += kBlock) {
    const std::span<const float> block =
        logits.subspan(first, std::min(kBlock, logits.size() - first));
    const size_t whole = block.size() / F32x8::kWidth * F32x8::kWidth;
    F32x8 sums = F32x8::zero();
    for (size_t i = 0; i < whole; i += F32x8::kWidth) {
      sums = sums + exp(F32x8::load(block.data() + i) - offset);
    }
    total += static_cast<double>(sum(sums));
    for (size_t i = whole; i < block.size(); ++i) {
      total += std::exp(static_cast<double>(block[i]) - largest);
    }
  }
  return static_cast<double>(logits[static_cast<size_t>(id)]) - largest - std::log(total);
}

}  // namespace sparsellm
