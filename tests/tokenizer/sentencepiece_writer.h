#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "tokenizer/sentencepiece_model.h"

// Writes SentencePiece models: fields of protocol buffers, as sentencepiece_model.proto numbers
// them.
namespace sparsellm::testing {

inline std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) {
    bytes += static_cast<char>(value | 0x80);
  }
  return bytes + static_cast<char>(value);
}
inline std::string number_field(int field, uint64_t value) {
  return varint(field << 3) + varint(value);
}
inline std::string bytes_field(int field, std::string_view bytes) {
  return varint(field << 3 | 2) + varint(bytes.size()) + std::string(bytes);
}
inline std::string float_field(int field, float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  std::string bytes = varint(field << 3 | 5);
  for (int i = 0; i < 4; ++i) {
    bytes += static_cast<char>(bits >> (8 * i));
  }
  return bytes;
}

inline std::string piece(
    std::string_view text, float score,
    SentencePieceModel::PieceType type = SentencePieceModel::PieceType::normal) {
  return bytes_field(1, bytes_field(1, text) + float_field(2, score) +
                            number_field(3, static_cast<uint64_t>(type)));
}

}  // namespace sparsellm::testing
