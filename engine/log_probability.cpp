#include "engine/log_probability.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "engine/logit_scan.h"
#include "kernels/base/error.h"
#include "kernels/base/simd.h"
#include "kernels/log_probs.h"

namespace sparsellm {
namespace {

// ln softmax(logits)[i] = logits[i] - largest - log_total.
struct Normalizer {
  float largest;
  double log_total;  // ln of the sum of exp(logit - largest)

  double log_prob(float logit) const { return static_cast<double>(logit) - largest - log_total; }
};

Normalizer normalizer_of(std::span<const float> logits) {
  const float most = largest(logits);
  const F32x8 offset = F32x8::all(most);
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
      total += std::exp(static_cast<double>(block[i]) - most);
    }
  }
  return {.largest = most, .log_total = std::log(total)};
}

void require_in_vocabulary(std::span<const float> logits, int32_t id) {
  require(id >= 0 && static_cast<size_t>(id) < logits.size(),
          "token id {} is outside the vocabulary of {}", id, logits.size());
}

// The ids of the `count` largest logits, the largest first, the smaller id of equal ones; NaNs
// after all others.
std::vector<int32_t> ids_of_largest(std::span<const float> logits, size_t count) {
  const float lower_bound = reached_by(logits, count);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] < lower_bound)) {  // NaNs too: nothing else may be left
      ids.push_back(static_cast<int32_t>(i));
    }
  }
  const auto ranks_before = [logits](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    if (std::isnan(x) != std::isnan(y)) {
      return std::isnan(y);
    }
    return x > y || (!(x < y) && a < b);
  };
  count = std::min(count, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(),
                    ranks_before);
  ids.resize(count);
  return ids;
}

}  // namespace

double log_probability(std::span<const float> logits, int32_t id) {
  require_in_vocabulary(logits, id);
  return normalizer_of(logits).log_prob(logits[static_cast<size_t>(id)]);
}

TokenLogProbs token_log_probs(const LogProbs& told, int32_t top, int64_t vocabulary) {
  TokenLogProbs result{.token = {.token = told.token, .log_prob = told.log_prob}, .top = {}};
  const auto count = static_cast<size_t>(std::min<int64_t>({top, vocabulary, kMaxDeviceLogProbs}));
  for (size_t i = 0; i < count; ++i) {
    result.top.push_back({.token = told.top_tokens[i], .log_prob = told.top_log_probs[i]});
  }
  return result;
}

TokenLogProbs token_log_probs(std::span<const float> logits, int32_t token, int32_t top) {
  require_in_vocabulary(logits, token);
  require(top >= 0 && top <= kMaxTopLogProbs, "{} log-probabilities per token are not in [0, {}]",
          top, kMaxTopLogProbs);
  const Normalizer normalizer = normalizer_of(logits);
  const auto log_prob_of = [&](int32_t id) {
    return TokenLogProb{
        .token = id,
        .log_prob = static_cast<float>(normalizer.log_prob(logits[static_cast<size_t>(id)]))};
  };
  TokenLogProbs result{.token = log_prob_of(token), .top = {}};
  if (top == 0) {
    return result;
  }
  for (int32_t id : ids_of_largest(logits, static_cast<size_t>(top))) {
    result.top.push_back(log_prob_of(id));
  }
  return result;
}

}  // namespace sparsellm
