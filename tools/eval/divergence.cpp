#include "tools/eval/divergence.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace sparsellm {
namespace {

size_t index_of_largest(std::span<const float> logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

Divergence divergence(std::span<const float> p_logits, std::span<const float> q_logits,
                      int32_t next) {
  const size_t p_top = index_of_largest(p_logits);
  const size_t q_top = index_of_largest(q_logits);
  const double p_largest = p_logits[p_top];
  const double q_largest = q_logits[q_top];
  double p_total = 0.0;
  double q_total = 0.0;
  double weighted = 0.0;  // sum of p * (ln p - ln q), before p and q are normalised
  for (size_t i = 0; i < p_logits.size(); ++i) {
    const double p_log = p_logits[i] - p_largest;
    const double q_log = q_logits[i] - q_largest;
    const double p = std::exp(p_log);
    p_total += p;
    q_total += std::exp(q_log);
    weighted += p * (p_log - q_log);
  }
  const double p_log_total = std::log(p_total);
  const double q_log_total = std::log(q_total);
  const auto token = static_cast<size_t>(next);
  return {
      // Rounding may take a divergence of almost nothing below zero.
      .kl = std::max(0.0, weighted / p_total + (q_log_total - p_log_total)),
      .top1_gap = p_largest - p_logits[q_top],
      .p = {.log_prob = p_logits[token] - p_largest - p_log_total,
            .top = static_cast<int32_t>(p_top),
            .top_probability = 1.0 / p_total},
      .q = {.log_prob = q_logits[token] - q_largest - q_log_total,
            .top = static_cast<int32_t>(q_top),
            .top_probability = 1.0 / q_total},
  };
}

}  // namespace sparsellm
