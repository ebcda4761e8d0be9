#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace sparsellm {

// Spaces as SentencePiece has them: a visible character in their place, and one in front of the
// text.
struct MetaspaceStep {
  enum class Prepend : uint8_t {
    first,   // if the text begins there
    always,  // also after an added token
    never,
  };
  std::string replacement = "\u2581";  // one character
  Prepend prepend = Prepend::always;   // unless there is one already
  bool split = true;                   // cut in front of each
};

// Calls visit(word, is_first) for the words of `text`, none of them empty, which may be gone after
// the call. `begins_text` says that nothing is in front of `text`.
void for_each_metaspace_word(
    const MetaspaceStep& step, std::string_view text, bool begins_text,
    const std::function<void(std::string_view word, bool is_first)>& visit);

}  // namespace sparsellm
