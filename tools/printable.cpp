#include "tools/printable.h"

#include <cstddef>

#include "kernels/base/error.h"
#include "tokenizer/utf8.h"

namespace sparsellm {
namespace {

bool is_harmless(std::string_view character) {
  const char32_t code = take_character(character);
  const bool control = code < 0x20 || (code >= 0x7f && code < 0xa0);
  const bool line_or_direction = (code >= 0x2028 && code <= 0x202e) ||
                                 (code >= 0x2066 && code <= 0x2069) || code == 0x200e ||
                                 code == 0x200f;
  return !control && !line_or_direction;
}

void append_escape(char byte, std::string& out) {
  switch (byte) {
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\\':
      out += "\\\\";
      return;
    default:
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  }
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Front front = utf8_front(text);
    const std::string_view piece = text.substr(0, static_cast<size_t>(front.length));
    text.remove_prefix(piece.size());
    if (front.kind == Utf8Front::Kind::character && piece != "\\" && is_harmless(piece)) {
      out += piece;
    } else {
      for (char byte : piece) {
        append_escape(byte, out);
      }
    }
  }
  return out;
}

}  // namespace sparsellm
