#include "engine/logit_scan.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "kernels/base/simd.h"

namespace sparsellm {

bool all_finite(std::span<const float> logits) {
  int found = 0;
  for (float logit : logits) {  // without a way out, so that compilers vectorise it
    found |= std::isfinite(logit) ? 0 : 1;
  }
  return found == 0;
}

float largest(std::span<const float> logits) {
  F32x8 lanes = F32x8::all(-std::numeric_limits<float>::infinity());
  const size_t whole = logits.size() / F32x8::kWidth * F32x8::kWidth;
  for (size_t i = 0; i < whole; i += F32x8::kWidth) {
    lanes = max(F32x8::load(logits.data() + i), lanes);  // of a NaN and a number the second
  }
  float result = max_element(lanes);
  for (size_t i = whole; i < logits.size(); ++i) {
    result = std::max(result, logits[i]);
  }
  return result;
}

size_t index_of_largest(std::span<const float> logits) {
  constexpr size_t kBlock = 1024;
  float best = largest(logits.first(std::min(kBlock, logits.size())));
  size_t best_block = 0;
  for (size_t first = kBlock; first < logits.size(); first += kBlock) {
    const float candidate = largest(logits.subspan(first, std::min(kBlock, logits.size() - first)));
    if (candidate > best) {
      best = candidate;
      best_block = first;
    }
  }
  const auto from = logits.begin() + static_cast<std::ptrdiff_t>(best_block);
  return static_cast<size_t>(std::find(from, logits.end(), best) - logits.begin());
}

float reached_by(std::span<const float> logits, size_t count) {
  constexpr size_t kBlock = 64;
  std::vector<float> maxima;  // each of another logit
  maxima.reserve(logits.size() / kBlock + 1);
  for (size_t first = 0; first < logits.size(); first += kBlock) {
    maxima.push_back(largest(logits.subspan(first, std::min(kBlock, logits.size() - first))));
  }
  if (count == 0 || count > maxima.size()) {
    return -std::numeric_limits<float>::infinity();
  }
  const auto last = maxima.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(maxima.begin(), last, maxima.end(), std::greater<>());
  return *last;
}

}  // namespace sparsellm
