#pragma once

#include <string_view>

#include "tokenizer/tokenizer.h"

namespace sparsellm::fuzz {

// Decodes ids of all kinds, and encodes and decodes `text` and one that does not change. Throws the
// Error of a text that the tokenizer refuses.
void use_tokenizer(const Tokenizer& tokenizer, std::string_view text);

}  // namespace sparsellm::fuzz
