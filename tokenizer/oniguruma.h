#pragma once

#include <string>
#include <string_view>

namespace sparsellm {

// Translates a regular expression of a tokenizer.json, which Hugging Face compiles with Oniguruma
// (Ruby syntax), into one for PCRE2 (with UTF and UCP) that matches the same. What the two read
// differently is rewritten or refused: white space is the Unicode property White_Space (PCRE2's \s
// has U+180E too), only general categories are taken as \p{...} (PCRE2's scripts are script
// extensions), and anchors, \w, \b, \h, back references, nested classes and the like are Errors
// that name the construct. Inside (?i:...) only ASCII without multi-character case folding is
// taken.
std::string pcre2_from_oniguruma(std::string_view pattern);

}  // namespace sparsellm
