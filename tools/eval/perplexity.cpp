#include "tools/eval/perplexity.h"

#include <chrono>
#include <cmath>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "engine/log_probability.h"
#include "kernels/base/error.h"
#include "tools/eval/estimate.h"

namespace sparsellm {

Perplexity measure_perplexity(Engine& engine, const std::string& text, int64_t context,
                              PerplexityProtocol protocol,
                              const std::function<void(int64_t, int64_t)>& progress,
                              ScoredRows rows) {
  const std::vector<TextWindow> windows = cut_windows(engine.tokenizer(), text, context, protocol);
  const auto start = std::chrono::steady_clock::now();
  // Added up in the order of the text, whatever the order in which steps score it.
  std::vector<double> log_probs(windows.size() * windows.front().scored());
  Perplexity result;
  std::string error;
  size_t first = 0;  // among log_probs, of the window
  for (const TextWindow& window : windows) {
    const auto on_scored = [&, first](size_t index, std::span<const float> logits) {
      log_probs[first + index - window.first_scored] =
          log_probability(logits, window.tokens[index]);
      ++result.tokens;
    };
    first += window.scored();
    engine.submit(scored_request(window, rows, on_scored), [&](const TokenEvent& event) {
      if (event.finish) {
        ++result.windows;
      }
      if (!event.error.empty()) {
        error = event.error;
      }
    });
  }
  while (error.empty() && engine.step()) {
    progress(result.tokens, std::ssize(log_probs));
  }
  require(error.empty(), "{}", error);
  require(result.tokens == std::ssize(log_probs), "{} of {} tokens were scored", result.tokens,
          log_probs.size());

  SampleMean nll;  // negative log-likelihood of a token
  for (double log_prob : log_probs) {
    nll.add(-log_prob);
  }
  const Estimate estimate = nll.exp_of_mean();
  require(std::isfinite(estimate.value) && std::isfinite(estimate.standard_error),
          "the perplexity is not finite: the mean negative log-likelihood is {}", nll.mean().value);
  result.perplexity = estimate.value;
  result.standard_error = estimate.standard_error;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace sparsellm
