#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

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

struct TextWindow {
  std::vector<int32_t> tokens;  // BOS and a piece of the text
  size_t first_scored = 1;      // index in `tokens` of the first whose probability counts
  int64_t text_offset = 0;      // index of tokens[1] among the tokens of the text

  bool is_scored(size_t index) const { return index >= first_scored && index < tokens.size(); }
  size_t scored() const { return tokens.size() - first_scored; }
  // Of tokens[index], index >= 1.
  int64_t text_index(size_t index) const { return text_offset + static_cast<int64_t>(index) - 1; }
};

// At least one window. Throws Error if the text is shorter than that, the context shorter than 4,
// or the tokenizer has no BOS, and as Tokenizer::encode does; Interrupted.
std::vector<TextWindow> cut_windows(const Tokenizer& tokenizer, const std::string& text,
                                    int64_t context, PerplexityProtocol protocol);

}  // namespace sparsellm
