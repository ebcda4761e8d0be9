#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "engine/request.h"
#include "tools/eval/text_windows.h"

namespace sparsellm {

// How the rows of a window are computed. What treats prompts and generated tokens differently, as
// activation sparsity does, is measured by decode rows alone.
enum class ScoredRows : uint8_t {
  prefill,  // many rows of a window in a step, as a prompt
  decode,  // one row of each window a step, as if the model had written the text; BOS is its prompt
};

// Windows that decode at once: enough that a step of weights serves many rows.
inline constexpr int64_t kDecodedWindows = 32;

// Asks for the logits that lead to the scored tokens of `window`, and generates nothing:
// on_scored(index, logits) gets those that lead to window.tokens[index]. `window` has to live until
// the request ends.
template <class OnScored>
Request scored_request(const TextWindow& window, ScoredRows rows, OnScored on_scored) {
  Request request;
  request.prompt = window.tokens;
  request.max_tokens = 0;
  request.score_prompt = true;
  request.on_logits = [&window, on_scored = std::move(on_scored)](int64_t position,
                                                                  std::span<const float> logits) {
    const auto next = static_cast<size_t>(position) + 1;
    if (window.is_scored(next)) {
      on_scored(next, logits);
    }
  };
  if (rows == ScoredRows::decode) {
    request.decode_from = 1;
  }
  return request;
}

}  // namespace sparsellm
