#include "tokenizer/utf8.h"

#include "kernels/base/error.h"

namespace sparsellm {

Utf8Front utf8_front(std::string_view bytes) {
  using Kind = Utf8Front::Kind;
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) {
    return {Kind::character, 1};
  }
  if (lead < 0xc2 || lead > 0xf4) {
    return {Kind::ill_formed, 1};
  }
  const int length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // Some second bytes would spell an overlong form, a surrogate or a value above U+10FFFF.
  uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) == bytes.size()) {
      return {Kind::incomplete, i};
    }
    if (at(i) < low || at(i) > high) {
      return {Kind::ill_formed, i};
    }
    low = 0x80;
    high = 0xbf;
  }
  return {Kind::character, length};
}

void check_text(std::string_view text) {
  require(text.size() <= kMaxTextBytes, "the text has {} bytes; at most {} are supported",
          text.size(), kMaxTextBytes);
  for (size_t offset = 0; offset < text.size();) {
    const Utf8Front front = utf8_front(text.substr(offset));
    require(front.kind == Utf8Front::Kind::character, "the text has invalid UTF-8 at byte {}",
            offset);
    offset += front.length;
  }
}

char32_t take_character(std::string_view& text) {
  const int length = utf8_front(text).length;
  const auto at = [&](int i) { return static_cast<uint8_t>(text[i]); };
  char32_t character = length == 1 ? at(0) : at(0) & (0x7f >> length);
  for (int i = 1; i < length; ++i) {
    character = character << 6 | (at(i) & 0x3f);
  }
  text.remove_prefix(length);
  return character;
}

void append_utf8(char32_t character, std::string& text) {
  const auto append = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (character < 0x80) {
    append(character);
    return;
  }
  const int tails = character < 0x800 ? 1 : character < 0x10000 ? 2 : 3;
  const char32_t lead_marks[] = {0xc0, 0xe0, 0xf0};
  append(lead_marks[tails - 1] | character >> (6 * tails));
  for (int i = tails - 1; i >= 0; --i) {
    append(0x80 | (character >> (6 * i) & 0x3f));
  }
}

}  // namespace sparsellm
