#include "tools/eval/perplexity.h"

#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

#include "engine/log_probability.h"
#include "kernels/base/error.h"
#include "tools/eval/estimate.h"

namespace sparsellm {

Perplexity measure_perplexity(Engine& engine, const std::string& text, int64_t context,
                              PerplexityProtocol protocol,
                              const std::function<void(int64_t, int64_t)>& progress) {
  const std::vector<TextWindow> windows = cut_windows(engine.tokenizer(), text, context, protocol);
  const auto start = std::chrono::steady_clock::now();
  SampleMean nll;  // negative log-likelihood of a token
  Perplexity result;
  std::string error;
  for (const TextWindow& window : windows) {
    Request request;
    request.prompt = window.tokens;
    request.max_tokens = 0;
    request.score_prompt = true;
    request.on_logits = [&](int64_t position, std::span<const float> logits) {
      const auto next = static_cast<size_t>(position) + 1;
      if (window.is_scored(next)) {
        nll.add(-log_probability(logits, window.tokens[next]));
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

  const Estimate estimate = nll.exp_of_mean();
  require(std::isfinite(estimate.value) && std::isfinite(estimate.standard_error),
          "the perplexity is not finite: the mean negative log-likelihood is {}", nll.mean().value);
  result.perplexity = estimate.value;
  result.standard_error = estimate.standard_error;
  result.tokens = nll.count();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace sparsellm
