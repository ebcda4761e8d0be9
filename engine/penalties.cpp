#include "engine/penalties.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace sparsellm {
namespace {

// A value that came from finite numbers stays apart from -infinity, a bias that forbids a token.
float to_logit(double value) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  return static_cast<float>(std::isfinite(value) ? std::clamp(value, -kLargest, kLargest) : value);
}

bool contains(const std::vector<float>& logits, int32_t token) {
  return token >= 0 && static_cast<size_t>(token) < logits.size();
}

std::span<const int32_t> continuation(const TokenHistory& history) {
  return history.tokens.subspan(static_cast<size_t>(history.prompt_length));
}

void add_bias(std::vector<float>& logits, std::span<const LogitBias> biases) {
  for (const LogitBias& entry : biases) {
    if (contains(logits, entry.token)) {
      float& logit = logits[static_cast<size_t>(entry.token)];
      logit = to_logit(static_cast<double>(logit) + entry.bias);
    }
  }
}

void penalize_repetition(std::vector<float>& logits, std::span<const int32_t> tokens,
                         double penalty) {
  std::vector<bool> seen(logits.size());
  for (int32_t token : tokens) {
    if (contains(logits, token) && !seen[static_cast<size_t>(token)]) {
      seen[static_cast<size_t>(token)] = true;
      float& logit = logits[static_cast<size_t>(token)];
      logit = to_logit(logit > 0.0f ? logit / penalty : logit * penalty);
    }
  }
}

void penalize_occurrences(std::vector<float>& logits, std::span<const int32_t> tokens,
                          double frequency_penalty, double presence_penalty) {
  std::vector<int32_t> counts(logits.size());
  for (int32_t token : tokens) {
    if (contains(logits, token)) {
      ++counts[static_cast<size_t>(token)];
    }
  }
  for (size_t i = 0; i < logits.size(); ++i) {
    if (counts[i] > 0) {
      logits[i] = to_logit(logits[i] - (frequency_penalty * counts[i] + presence_penalty));
    }
  }
}

bool penalizes_repetition(const SamplingParams& params, const TokenHistory& history) {
  return params.repetition_penalty != 1.0f && !history.tokens.empty();
}

bool penalizes_occurrences(const SamplingParams& params, const TokenHistory& history) {
  return (params.frequency_penalty != 0.0f || params.presence_penalty != 0.0f) &&
         !continuation(history).empty();
}

}  // namespace

bool adjusts_logits(const SamplingParams& params, const TokenHistory& history) {
  return !params.logit_bias.empty() || penalizes_repetition(params, history) ||
         penalizes_occurrences(params, history);
}

std::vector<float> adjusted_logits(std::span<const float> logits, const SamplingParams& params,
                                   const TokenHistory& history) {
  std::vector<float> adjusted(logits.begin(), logits.end());
  add_bias(adjusted, params.logit_bias);
  if (penalizes_repetition(params, history)) {
    penalize_repetition(adjusted, history.tokens, params.repetition_penalty);
  }
  if (penalizes_occurrences(params, history)) {
    penalize_occurrences(adjusted, continuation(history), params.frequency_penalty,
                         params.presence_penalty);
  }
  return adjusted;
}

}  // namespace sparsellm
