#include "tools/perplexity.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "engine/log_probability.h"
#include "kernels/base/error.h"

namespace sparsellm {
namespace {

struct Window {
  std::vector<int32_t> tokens;
  size_t first_scored = 1;  // index of the first token whose probability counts
};

// The text of the windows starts with BOS in both protocols.
std::vector<Window> cut(const Tokenizer& tokenizer, const std::string& text, int64_t context,
                        PerplexityProtocol protocol) {
  require(context >= 4, "a context of {} tokens is too short to score; use at least 4", context);
  require(tokenizer.bos_id().has_value(),
          "the tokenizer has no BOS, which every window starts with");
  const bool own_bos = protocol == PerplexityProtocol::windows;
  std::vector<int32_t> tokens = tokenizer.encode(text, {.add_special_tokens = false});
  if (!own_bos) {
    tokens.insert(tokens.begin(), *tokenizer.bos_id());
  }
  const auto stride = static_cast<size_t>(own_bos ? context - 1 : context);
  std::vector<Window> windows;
  for (size_t begin = 0; begin + stride <= tokens.size(); begin += stride) {
    Window window;
    window.tokens.assign(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                         tokens.begin() + static_cast<std::ptrdiff_t>(begin + stride));
    if (own_bos) {
      window.tokens.insert(window.tokens.begin(), *tokenizer.bos_id());
    } else {
      window.tokens.front() = *tokenizer.bos_id();
      window.first_scored = stride / 2 + 1;
    }
    windows.push_back(std::move(window));
  }
  require(!windows.empty(), "the text has {} tokens, less than one window of {}", tokens.size(),
          stride);
  return windows;
}

}  // namespace

Perplexity measure_perplexity(Engine& engine, const std::string& text, int64_t context,
                              PerplexityProtocol protocol,
                              const std::function<void(int64_t, int64_t)>& progress) {
  const std::vector<Window> windows = cut(engine.tokenizer(), text, context, protocol);
  const auto start = std::chrono::steady_clock::now();
  double sum = 0.0;
  double sum_of_squares = 0.0;
  Perplexity result;
  std::string error;
  for (const Window& window : windows) {
    Request request;
    request.prompt = window.tokens;
    request.max_tokens = 0;
    request.score_prompt = true;
    request.on_logits = [&](int64_t position, std::span<const float> logits) {
      const auto next = static_cast<size_t>(position) + 1;
      if (next < window.tokens.size() && next >= window.first_scored) {
        const double nll = -log_probability(logits, window.tokens[next]);
        require(!std::isnan(nll), "the model's logits contain NaN");
        sum += nll;
        sum_of_squares += nll * nll;
        ++result.tokens;
      }
    };
    engine.submit(std::move(request), [&](const TokenEvent& event) {
      if (event.finish) {
        ++result.windows;
      }
      if (!event.error.empty()) {
        error = event.error;
      }
    });
  }
  while (error.empty() && engine.step()) {
    progress(result.windows, static_cast<int64_t>(windows.size()));
  }
  require(error.empty(), "{}", error);

  require(result.tokens >= 2, "the text has {} tokens to score; at least 2 are needed",
          result.tokens);
  const auto count = static_cast<double>(result.tokens);
  const double mean = sum / count;
  const double variance = std::max(0.0, sum_of_squares / count - mean * mean);
  result.perplexity = std::exp(mean);
  require(std::isfinite(result.perplexity),
          "the perplexity is not finite: the mean negative log-"
          "likelihood is {}",
          mean);
  result.standard_error = result.perplexity * std::sqrt(variance / (count - 1.0));
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace sparsellm
