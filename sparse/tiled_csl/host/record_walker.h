#pragma once

#include "sparse/tiled_csl/host/tile_records.h"

namespace sparsellm::tiled_csl {

// For sparse/cpu/walk.h.
template <class T>
class RecordWalker {
 public:
  static constexpr int64_t kBlockRows = kTileRows;

  explicit RecordWalker(const EncodedWeight& e) : records_(e) {}

  template <class F>
  void walk(int64_t block, F&& f) const {
    const int64_t columns = records_.grid.columns;
    for (int64_t j = 0; j < columns; ++j) {
      for_each_piece(records_.record(block * columns + j), [&](const Piece& piece) {
        piece.for_each([&](uint32_t value_bits, uint32_t place) {
          if (is_nonzero(value_bits)) {
            const uint32_t location = place / 2;
            f(int64_t{row_of(location)}, j * kTileColumns + column_at(position_of(location)),
              T{static_cast<uint16_t>(value_bits)});
          }
        });
      });
    }
  }

 private:
  TileRecords records_;
};

}  // namespace sparsellm::tiled_csl
