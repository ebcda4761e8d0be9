#pragma once

#include "sparse/format.h"

namespace sparsellm {

// Tiled-CSL (Flash-LLM, Xia et al., VLDB 2024, section 4.3), for values in f16 and bf16.
//
// The matrix is cut into tiles of 128 rows x 64 columns; tiles at its edges are filled up with
// zeros. Tiles follow each other along a row of tiles, then comes the next row of tiles. With NT
// tiles the parts are
//   tile_offsets  u32 [NT + 1]           tile t is words [tile_offsets[t], tile_offsets[t + 1])
//   words         u32 [tile_offsets[NT]] one nonzero each: its 16 bits above its location
// A location is where a kernel puts the value: the index of a 2-byte element in the tile's 16 KiB
// of shared memory (tile_layout.h).
//
// The words of a tile are in the order in which a kernel stores them: lane i of a warp stores word
// 32 g + i, and the banks of each 32 words differ as far as the tile allows (tile_encoder.h).
//
// Every tile starts at a multiple of 4 words, so that kernels can load 16 bytes at a time from its
// first word on. At most 3 words fill it up: the value 0 at the lowest location without a nonzero.
// Kernels may treat them like all others: they store a zero where one is.
//
// NaNs, infinities and subnormals keep their bits; a negative zero becomes a zero. The formula is
// 4 (NT + 1) + 4 NNZ bytes.
const WeightFormat& tiled_csl_format();

}  // namespace sparsellm
