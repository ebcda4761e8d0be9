#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/tensor.h"
#include "sparse/tiled_csl/format/tile_layout.h"

namespace sparsellm::tiled_csl {

// What lies in the matrix of a tile.
struct TileSource {
  const uint16_t* values = nullptr;  // its first element
  int64_t row_stride = 0;            // elements
  int64_t rows = 0;                  // at most 128
  int64_t columns = 0;               // at most 64
};

inline TileSource tile_of(const Tensor& w, int64_t tile) {
  const TileGrid grid = tile_grid(w.size(0), w.size(1));
  const int64_t row = tile / grid.columns * kTileRows;
  const int64_t column = tile % grid.columns * kTileColumns;
  return {.values = static_cast<const uint16_t*>(w.raw()) + row * w.row_stride() + column,
          .row_stride = w.row_stride(),
          .rows = std::min<int64_t>(kTileRows, w.size(0) - row),
          .columns = std::min<int64_t>(kTileColumns, w.size(1) - column)};
}

inline int64_t count_nonzeros(const TileSource& tile) {
  int64_t count = 0;
  for (int64_t row = 0; row < tile.rows; ++row) {
    const uint16_t* const values = tile.values + row * tile.row_stride;
    uint16_t in_row = 0;  // as wide as a value, which lets compilers vectorise the loop
    for (int64_t column = 0; column < tile.columns; ++column) {
      in_row = static_cast<uint16_t>(in_row + (is_nonzero(values[column]) ? 1 : 0));
    }
    count += in_row;
  }
  return count;
}

}  // namespace sparsellm::tiled_csl
