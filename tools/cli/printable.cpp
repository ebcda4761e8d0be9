#include "tools/cli/printable.h"

#include <cstddef>

#include "kernels/base/error.h"
#include "tokenizer/utf8.h"

namespace sparsellm {
namespace {

// Of a longer message that many bytes at its beginning and at its end are shown.
constexpr size_t kMaxHalf = 2000;

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

// Calls visit(piece, harmless) for each character, and each run of bytes that are none.
template <class Visit>
void for_each_piece(std::string_view text, const Visit& visit) {
  while (!text.empty()) {
    const Utf8Front front = utf8_front(text);
    const std::string_view piece = text.substr(0, static_cast<size_t>(front.length));
    text.remove_prefix(piece.size());
    visit(piece, front.kind == Utf8Front::Kind::character && is_harmless(piece));
  }
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  for_each_piece(text, [&out](std::string_view piece, bool harmless) {
    if (harmless && piece != "\\") {
      out += piece;
      return;
    }
    for (char byte : piece) {
      append_escape(byte, out);
    }
  });
  return out;
}

std::string one_line(std::string_view text) {
  if (text.size() > 2 * kMaxHalf) {
    return one_line(text.substr(0, kMaxHalf)) + " ... " +
           one_line(text.substr(text.size() - kMaxHalf));
  }
  std::string out;
  for_each_piece(text, [&out](std::string_view piece, bool harmless) {
    out += harmless ? piece : std::string_view(" ");
  });
  return out;
}

}  // namespace sparsellm
