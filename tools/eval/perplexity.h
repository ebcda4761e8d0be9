#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/engine.h"
#include "tools/eval/scored_request.h"
#include "tools/eval/text_windows.h"

namespace sparsellm {

struct Perplexity {
  double perplexity = 0.0;      // e^(mean negative log-likelihood)
  double standard_error = 0.0;  // of the perplexity, from the spread over the tokens
  int64_t tokens = 0;           // scored
  int64_t windows = 0;
  double seconds = 0.0;
};

// Throws Error if the text is shorter than one window. `progress` gets tokens scored and in all.
// Sums are taken in the order of the text: the same logits give the same bits, whatever the steps.
Perplexity measure_perplexity(Engine& engine, const std::string& text, int64_t context,
                              PerplexityProtocol protocol,
                              const std::function<void(int64_t, int64_t)>& progress,
                              ScoredRows rows = ScoredRows::prefill);

}  // namespace sparsellm
