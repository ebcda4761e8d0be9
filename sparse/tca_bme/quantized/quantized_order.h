#pragma once

#include <array>
#include <cstdint>

#include "sparse/tca_bme/quantized/quantized_layout.h"

namespace sparsellm::tca_bme {

// Four neighbouring columns of a row of a chunk.
struct QuantizedUnit {
  int32_t j = 0;
  int32_t q = 0;
  int32_t t = 0;
  int32_t h = 0;
  int32_t g = 0;

  constexpr int32_t row() const { return 16 * j + 8 * q + g; }
  constexpr int32_t column() const { return 16 * h + 4 * t; }  // the first
  constexpr int32_t word(int32_t chunk) const { return quantized_mask_word(chunk, g, t, q); }
  constexpr int32_t bit(int32_t k) const { return 4 * k + 2 * j + h; }
};

// The i-th unit of a chunk in the order of the values.
inline constexpr int32_t kUnitsOfChunk = 256;
constexpr QuantizedUnit quantized_unit(const QuantizedLayout& layout, int32_t i) {
  constexpr int32_t kInner = 16;  // units of the same j, q and t
  const int32_t outer = i / kInner;
  const int32_t inner = i % kInner;
  const bool j_first = layout.offsets == 16;
  return {.j = j_first ? outer / 8 : outer % 2,
          .q = j_first ? outer / 4 % 2 : outer / 8,
          .t = j_first ? outer % 4 : outer / 2 % 4,
          .h = layout.nibbles() ? inner % 2 : inner / 8,
          .g = layout.nibbles() ? inner / 2 : inner % 8};
}

// Where in a chunk an element is, and where its bit.
struct ElementPlace {
  uint8_t row = 0;
  uint8_t column = 0;
  uint8_t word = 0;  // of the masks of the chunk
  uint8_t bit = 0;
};

// The elements of a chunk in the order of their values. Each offset of a chunk is for as many of
// them; that of the i-th run is the one of j = i / 8, q = i / 4 % 2 and t = i % 4.
using ChunkOrder =
    std::array<ElementPlace, QuantizedLayout::kChunkSide * QuantizedLayout::kChunkSide>;
const ChunkOrder& chunk_order(const QuantizedLayout& layout);

// Its index among the offsets of a record.
constexpr int32_t quantized_offset_of_run(const QuantizedLayout& layout, int32_t chunk, int32_t i) {
  return quantized_offset_index(layout, chunk, i / 8, i / 4 % 2, i % 4);
}

}  // namespace sparsellm::tca_bme
