#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace sparsellm {

// How a text is cut into windows and which of its tokens are scored.
enum class PerplexityProtocol : uint8_t {
  // The whole text tokenised once without special tokens; windows of context - 1 tokens, each
  // preceded by BOS; a tail shorter than a window is dropped; all tokens of a window are scored.
  windows,
  // The whole text tokenised once with BOS in front; windows of `context` tokens, the first of each
  // replaced by BOS; the tail is dropped; the tokens after the first half and one are scored.
  llama_cpp,
};

struct Perplexity {
  double perplexity = 0.0;      // e^(mean negative log-likelihood)
  double standard_error = 0.0;  // of the perplexity, from the spread over the tokens
  int64_t tokens = 0;           // scored
  int64_t windows = 0;
  double seconds = 0.0;
};

// Throws Error if the text is shorter than one window. `progress` gets windows done and in all.
Perplexity measure_perplexity(Engine& engine, const std::string& text, int64_t context,
                              PerplexityProtocol protocol,
                              const std::function<void(int64_t, int64_t)>& progress);

}  // namespace sparsellm
