#include "engine/penalties.h"

#include <algorithm>
#include <cstddef>

namespace sparsellm {
namespace {

bool counts_prompt(const Penalties& penalties) { return penalties.repetition != 1.0f; }

bool counts_continuation(const Penalties& penalties) {
  return counts_prompt(penalties) || penalties.frequency != 0.0f || penalties.presence != 0.0f;
}

}  // namespace

bool adjusts_logits(const SamplingParams& params, const TokenHistory& history) {
  const Penalties penalties = penalties_of(params);
  const bool has_continuation = std::ssize(history.tokens) > history.prompt_length;
  return !params.logit_bias.empty() || (counts_prompt(penalties) && !history.tokens.empty()) ||
         (counts_continuation(penalties) && has_continuation);
}

std::vector<float> adjusted_logits(std::span<const float> logits, const SamplingParams& params,
                                   const TokenHistory& history) {
  std::vector<float> adjusted(logits.begin(), logits.end());
  LogitAdjustments adjustments(params, std::ssize(logits));
  adjustments.count(history);
  const Penalties penalties = penalties_of(params);
  for (const LogitAdjustment& one : adjustments.all()) {
    float& logit = adjusted[static_cast<size_t>(one.token)];
    logit = adjusted_logit(logit, one.count, one.bias, penalties);
  }
  return adjusted;
}

Penalties penalties_of(const SamplingParams& params) {
  return {.repetition = params.repetition_penalty,
          .frequency = params.frequency_penalty,
          .presence = params.presence_penalty};
}

int64_t LogitAdjustments::most(const SamplingParams& params, int64_t prompt_length,
                               int64_t length) {
  const Penalties penalties = penalties_of(params);
  return std::ssize(params.logit_bias) + (counts_prompt(penalties)         ? length
                                          : counts_continuation(penalties) ? length - prompt_length
                                                                           : 0);
}

void LogitAdjustments::add_biases() {
  all_.clear();
  for (const LogitBias& entry : params_->logit_bias) {
    if (has(entry.token)) {
      all_.push_back({.token = entry.token, .count = kNotSeen, .bias = entry.bias});
    }
  }
  has_biases_ = true;
}

void LogitAdjustments::count(const TokenHistory& history) {
  if (!has_biases_) {
    add_biases();
  }
  const Penalties penalties = penalties_of(*params_);
  if (!counts_continuation(penalties)) {
    return;
  }
  if (counted_ == 0 && !counts_prompt(penalties)) {
    counted_ = history.prompt_length;
  }
  for (; counted_ < std::ssize(history.tokens); ++counted_) {
    const int32_t token = history.tokens[static_cast<size_t>(counted_)];
    if (has(token)) {
      int32_t& count = of(token).count;
      count = std::max(count, 0) + (counted_ >= history.prompt_length ? 1 : 0);
    }
  }
}

LogitAdjustment& LogitAdjustments::of(int32_t token) {
  if (places_.empty()) {
    places_.assign(static_cast<size_t>(vocabulary_), -1);
    for (size_t i = 0; i < all_.size(); ++i) {
      places_[static_cast<size_t>(all_[i].token)] = static_cast<int32_t>(i);
    }
  }
  int32_t& place = places_[static_cast<size_t>(token)];
  if (place < 0) {
    all_.push_back({.token = token});
    place = static_cast<int32_t>(all_.size()) - 1;
  }
  return all_[static_cast<size_t>(place)];
}

}  // namespace sparsellm
