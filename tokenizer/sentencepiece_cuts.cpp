#include "tokenizer/sentencepiece_cuts.h"

#include <algorithm>
#include <cstdint>

#include "tokenizer/utf8.h"

namespace sparsellm {
namespace {

using PieceType = SentencePieceModel::PieceType;

constexpr char32_t kSpaceSymbol = 0x2581;
constexpr std::string_view kSpaceSymbolBytes = "\xe2\x96\x81";

// A false alarm, here one in twenty for a vocabulary of 32,000, only moves a cut.
constexpr int kHashBits = 20;

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Front front = utf8_front(text);
    if (front.kind != Utf8Front::Kind::character) {
      return false;
    }
    text.remove_prefix(static_cast<size_t>(front.length));
  }
  return true;
}

// Spaces are written as their symbol before anything is merged.
char32_t take_normalized(std::string_view& text) {
  const char32_t character = take_character(text);
  return character == U' ' ? kSpaceSymbol : character;
}

bool forbids_cuts(const SentencePieceModel::Piece& piece, bool remove_extra_whitespaces) {
  if (piece.type == PieceType::user_defined) {
    return !is_utf8(piece.text) ||
           (remove_extra_whitespaces && piece.text.find(' ') != std::string::npos);
  }
  return piece.type == PieceType::unused;
}

}  // namespace

SentencePieceCuts::SentencePieceCuts(const SentencePieceModel& model)
    : possible_(std::none_of(model.pieces.begin(), model.pieces.end(),
                             [&](const SentencePieceModel::Piece& piece) {
                               return forbids_cuts(piece, model.remove_extra_whitespaces);
                             })) {
  if (!possible_) {
    return;
  }
  joined_.resize(size_t{1} << kHashBits);
  for (const auto& piece : model.pieces) {
    const bool is_merged = piece.type == PieceType::normal || piece.type == PieceType::user_defined;
    // Text never becomes a piece that is not UTF-8.
    if (!is_merged || !is_utf8(piece.text)) {
      continue;
    }
    std::string_view rest = piece.text;
    char32_t left = take_normalized(rest);
    while (!rest.empty()) {
      const char32_t right = take_normalized(rest);
      joined_[slot(left, right)] = true;
      left = right;
    }
  }
}

size_t SentencePieceCuts::slot(char32_t left, char32_t right) {
  const uint64_t pair = uint64_t{left} << 32 | right;
  return pair * 0x9e3779b97f4a7c15u >> (64 - kHashBits);
}

size_t SentencePieceCuts::piece_end(std::string_view text, size_t min_bytes) const {
  if (!possible_ || text.size() <= min_bytes) {
    return text.size();
  }
  while ((static_cast<uint8_t>(text[min_bytes]) & 0xc0) == 0x80) {
    --min_bytes;
  }
  std::string_view rest = text.substr(min_bytes);
  char32_t left = take_normalized(rest);
  while (!rest.empty()) {
    const size_t end = text.size() - rest.size();
    const char32_t right = take_normalized(rest);
    if (!joined_[slot(left, right)]) {
      return end;
    }
    left = right;
  }
  return text.size();
}

std::string without_extra_spaces(std::string_view text) {
  std::string result;
  for (char c : text) {
    if (c != ' ' || (!result.empty() && result.back() != ' ')) {
      result += c;
    }
  }
  while (result.ends_with(' ') || result.ends_with(kSpaceSymbolBytes)) {
    result.resize(result.size() - (result.ends_with(' ') ? 1 : kSpaceSymbolBytes.size()));
  }
  return result;
}

}  // namespace sparsellm
