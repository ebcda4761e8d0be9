#include "tokenizer/find_text.h"

#include <cstring>

namespace sparsellm {

size_t find_text(std::string_view text, std::string_view part, size_t from) {
  if (from >= text.size()) {
    return std::string_view::npos;
  }
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

}  // namespace sparsellm
