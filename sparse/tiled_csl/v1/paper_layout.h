#pragma once

#include <cstdint>
#include <span>

#include "sparse/tiled_csl/format/tile_layout.h"

namespace sparsellm::tiled_csl {

// Version 1 of tiled_csl: Tiled-CSL as in the paper (Flash-LLM, Xia et al., VLDB 2024, section
// 4.3). Tiles follow each other along a row of tiles, then comes the next row of tiles. With NT
// tiles the parts are
//   tile_offsets  u32 [NT + 1]           tile t is words [tile_offsets[t], tile_offsets[t + 1])
//   words         u32 [tile_offsets[NT]] one nonzero each: its 16 bits above its location
// A location is where a kernel puts the value: that of its row, at the position of its column.
//
// The words of a tile are in the order in which a kernel stores them: lane i of a warp stores word
// 32 g + i, and the banks of each 32 words differ as far as the tile allows
// (paper_tile_encoder.h).
//
// Every tile starts at a multiple of 4 words, so that kernels can load 16 bytes at a time from its
// first word on. At most 3 words fill it up: the value 0 at the lowest location without a nonzero.
// Kernels may treat them like all others: they store a zero where one is.
inline constexpr int32_t kPaperVersion = 1;
inline constexpr int kAlignment = 4;  // of the first word of a tile, in words

constexpr uint32_t location_of(uint32_t row, uint32_t column) { return swizzled(row, column); }
constexpr uint32_t column_of(uint32_t location) { return position_of(location); }

constexpr uint32_t make_word(uint32_t value_bits, uint32_t location) {
  return value_bits << 16 | location;
}
constexpr uint32_t value_bits_of(uint32_t word) { return word >> 16; }
constexpr uint32_t location_of_word(uint32_t word) { return word & 0xffffu; }

constexpr int64_t aligned_words(int64_t nonzeros) {
  return ceil_div(nonzeros, kAlignment) * kAlignment;
}

// The words of a tile without those that fill it up.
inline std::span<const uint32_t> without_padding(std::span<const uint32_t> tile) {
  while (!tile.empty() && !is_nonzero(value_bits_of(tile.back()))) {
    tile = tile.first(tile.size() - 1);
  }
  return tile;
}

}  // namespace sparsellm::tiled_csl
