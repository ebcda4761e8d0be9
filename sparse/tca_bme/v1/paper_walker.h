#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "sparse/encoded_weight.h"
#include "sparse/tca_bme/v1/paper_layout.h"

namespace sparsellm::tca_bme {

// The nonzeros of a row of GroupTiles, for sparse/cpu/walk.h; those of one row of the
// matrix come from left to right.
template <class T>
class PaperWalker {
 public:
  static constexpr int64_t kBlockRows = kGroupTile;

  explicit PaperWalker(const EncodedWeight& e)
      : group_columns_(group_grid(e.rows, e.columns).columns),
        offsets_(e.part(kOffsets).values<uint32_t>()),
        bitmaps_(e.part(kBitmaps).values<uint64_t>()),
        values_(e.part(kValues).values<T>()) {}

  template <class F>
  void walk(int64_t block, F&& f) const {
    for (int64_t j = 0; j < group_columns_; ++j) {
      const int64_t group = block * group_columns_ + j;
      const uint64_t* const bitmaps = bitmaps_.data() + group * kGroupBitmaps;
      const T* value = values_.data() + offsets_[static_cast<size_t>(group)];
      for (int64_t b = 0; b < kGroupBitmaps; ++b) {
        const TileOrigin origin = bitmap_tile_origin(b);
        const int64_t column = j * kGroupTile + origin.column;
        for (uint64_t bits = bitmaps[b]; bits != 0; bits &= bits - 1) {
          const int bit = std::countr_zero(bits);
          f(origin.row + bit / kBitmapTile, column + bit % kBitmapTile, *value++);
        }
      }
    }
  }

 private:
  int64_t group_columns_;
  std::span<const uint32_t> offsets_;
  std::span<const uint64_t> bitmaps_;
  std::span<const T> values_;
};

}  // namespace sparsellm::tca_bme
