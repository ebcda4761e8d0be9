#include "tools/eval/text_windows.h"

#include <utility>

#include "kernels/base/error.h"
#include "tools/cli/interrupt.h"

namespace sparsellm {

std::vector<TextWindow> cut_windows(const Tokenizer& tokenizer, const std::string& text,
                                    int64_t context, PerplexityProtocol protocol) {
  require(context >= 4, "a context of {} tokens is too short to score; use at least 4", context);
  require(tokenizer.bos_id().has_value(),
          "the tokenizer has no BOS, which every window starts with");
  const bool own_bos = protocol == PerplexityProtocol::windows;
  std::vector<int32_t> tokens =
      tokenizer.encode(text, {.add_special_tokens = false, .poll = throw_if_interrupted});
  if (!own_bos) {
    tokens.insert(tokens.begin(), *tokenizer.bos_id());
  }
  const auto stride = static_cast<size_t>(own_bos ? context - 1 : context);
  std::vector<TextWindow> windows;
  for (size_t begin = 0; begin + stride <= tokens.size(); begin += stride) {
    TextWindow window;
    window.text_offset = static_cast<int64_t>(begin);
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

}  // namespace sparsellm
