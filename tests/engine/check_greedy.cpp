#include "tests/engine/check_greedy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace sparsellm::testing {
namespace {

// NaN if one of the logits is: then no token is close to it.
float largest_of(std::span<const float> logits, std::span<const int32_t> banned) {
  float largest = -std::numeric_limits<float>::infinity();
  for (int32_t id = 0; id < std::ssize(logits); ++id) {
    const float logit = logits[static_cast<size_t>(id)];
    if (std::isnan(logit)) {
      return logit;
    }
    if (std::ranges::find(banned, id) == banned.end()) {
      largest = std::max(largest, logit);
    }
  }
  return largest;
}

}  // namespace

std::string check_greedy(Engine& reference, const Request& request, std::span<const int32_t> tokens,
                         double tolerance) {
  const std::vector<int32_t>& eos = reference.config().eos_token_ids;
  const std::span<const int32_t> banned =
      request.ignore_eos ? std::span(eos) : std::span<const int32_t>();
  if (std::ssize(tokens) > request.max_tokens ||
      (request.ignore_eos && std::ssize(tokens) < request.max_tokens)) {
    return fmt::format("{} tokens instead of {}", tokens.size(), request.max_tokens);
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (std::ranges::find(banned, tokens[i]) != banned.end()) {
      return fmt::format("token {} is EOS, {}, in spite of ignore_eos", i, tokens[i]);
    }
  }
  std::string wrong;
  int64_t seen = 0;
  Request scored;
  scored.prompt = request.prompt;
  scored.prompt.insert(scored.prompt.end(), tokens.begin(), tokens.end());
  scored.max_tokens = 0;
  scored.score_prompt = true;
  scored.on_logits = [&](int64_t position, std::span<const float> logits) {
    const int64_t i = position + 1 - std::ssize(request.prompt);
    if (i < 0 || i >= std::ssize(tokens)) {
      return;
    }
    ++seen;
    const int32_t token = tokens[static_cast<size_t>(i)];
    const float logit = logits[static_cast<size_t>(token)];
    const float largest = largest_of(logits, banned);
    if (!(logit >= largest - tolerance) && wrong.empty()) {
      wrong = fmt::format("token {}, {}, has a logit of {}, {} less than the largest", i, token,
                          logit, largest - logit);
    }
  };
  std::string error = reference.generate({scored}).front().error;
  if (!error.empty()) {
    return error;
  }
  if (wrong.empty() && seen != std::ssize(tokens)) {
    return fmt::format("logits of {} tokens instead of {}", seen, tokens.size());
  }
  return wrong;
}

}  // namespace sparsellm::testing
