#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sparsellm {

// That of UTF-8, which some editors write in front of a text.
inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// What stands at the front of a byte string, read as UTF-8 (Unicode Standard, table 3-7).
struct Utf8Front {
  enum class Kind : uint8_t {
    character,   // a well-formed character
    ill_formed,  // bytes that cannot begin or continue one: the maximal subpart of section 3.9,
                 // which is replaced by one U+FFFD
    incomplete,  // the bytes end inside a character
  };
  Kind kind;
  int length;  // in bytes, 1 to 4
};

// `bytes` must not be empty.
Utf8Front utf8_front(std::string_view bytes);

// What every tokenizer asks of a text. Throws Error if it has more than kMaxTextBytes, or invalid
// UTF-8, naming the byte where the first ill-formed sequence begins.
inline constexpr size_t kMaxTextBytes = size_t{1} << 26;
void check_text(std::string_view text);

// Removes the first character of a well-formed text that is not empty, and returns it.
char32_t take_character(std::string_view& text);

void append_utf8(char32_t character, std::string& text);

}  // namespace sparsellm
