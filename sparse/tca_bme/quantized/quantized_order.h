#pragma once

#include <array>
#include <cstdint>

#include "sparse/tca_bme/quantized/quantized_layout.h"

namespace sparsellm::tca_bme {

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
