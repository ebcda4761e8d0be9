#include <algorithm>
#include <array>

#include "tokenizer/nfc.h"

namespace sparsellm {
namespace {

struct CodeRange {
  char32_t first;
  char32_t last;
};

// In order. Characters that change alone, and those that are composed with one in front of them,
// are left out: U+0340, U+0374, U+037E, U+0387, U+0958, U+3099 and the like.
constexpr std::array<CodeRange, 22> kPieceRanges = {{
    {0x0000, 0x02ff},    // ASCII, Latin
    {0x0388, 0x0482},    // Greek, Cyrillic
    {0x048a, 0x0587},    // Cyrillic, Armenian
    {0x05d0, 0x05ea},    // Hebrew
    {0x0620, 0x064a},    // Arabic
    {0x0660, 0x066f},    // its digits
    {0x0671, 0x06d5},    // Arabic
    {0x0904, 0x0939},    // Devanagari
    {0x0e01, 0x0e30},    // Thai
    {0x1780, 0x17b3},    // Khmer
    {0x1e00, 0x1eff},    // Latin
    {0x2010, 0x2027},    // punctuation
    {0x2030, 0x205e},    // punctuation
    {0x2190, 0x22ff},    // arrows, mathematical operators
    {0x2500, 0x27ff},    // boxes, symbols, dingbats
    {0x3001, 0x3029},    // punctuation
    {0x3041, 0x3096},    // Hiragana
    {0x30a1, 0x30fe},    // Katakana
    {0x3400, 0x9fff},    // Han
    {0xac00, 0xd7a3},    // Hangul syllables
    {0xff01, 0xff9d},    // full and half width
    {0x1f300, 0x1f6ff},  // emoji
}};

}  // namespace

bool begins_nfc_piece(char32_t character) {
  if (character <= kPieceRanges.front().last) {
    return true;
  }
  const auto* const range =
      std::lower_bound(kPieceRanges.begin(), kPieceRanges.end(), character,
                       [](const CodeRange& r, char32_t c) { return r.last < c; });
  return range != kPieceRanges.end() && character >= range->first;
}

}  // namespace sparsellm
