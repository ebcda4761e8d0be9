#include <algorithm>
#include <bit>

#include "kernels/base/error.h"
#include "sparse/tca_bme/v1/paper_layout.h"

namespace sparsellm::tca_bme {
namespace {

// The bits of an 8 x 8 bitmap whose elements are in a matrix that goes on for this many rows and
// columns from the BitmapTile's first.
uint64_t bits_inside(int64_t rows, int64_t columns) {
  const int64_t r = std::clamp<int64_t>(rows, 0, kBitmapTile);
  const int64_t c = std::clamp<int64_t>(columns, 0, kBitmapTile);
  uint64_t bits = 0;
  for (int64_t row = 0; row < r; ++row) {
    bits |= ((uint64_t{1} << c) - 1) << (row * kBitmapTile);
  }
  return bits;
}

// Returns the nonzeros of a GroupTile of a matrix that goes on for this many rows and columns.
int64_t checked_nonzeros(std::span<const uint64_t> bitmaps, int64_t group, int64_t rows,
                         int64_t columns) {
  const bool whole = rows >= kGroupTile && columns >= kGroupTile;
  int64_t nonzeros = 0;
  for (int64_t b = 0; b < kGroupBitmaps; ++b) {
    const uint64_t bitmap = bitmaps[static_cast<size_t>(b)];
    nonzeros += std::popcount(bitmap);
    if (!whole) {
      const TileOrigin origin = bitmap_tile_origin(b);
      require((bitmap & ~bits_inside(rows - origin.row, columns - origin.column)) == 0,
              "tca_bme: bitmap {} of GroupTile {} has bits outside of the matrix", b, group);
    }
  }
  return nonzeros;
}

}  // namespace

void validate_paper(const EncodedWeight& e) {
  require(e.dtype == DType::f16 || e.dtype == DType::bf16, "a tca_bme weight of {} values",
          name_of(e.dtype));
  const GroupGrid grid = group_grid(e.rows, e.columns);
  require_parts(e, {{kOffsets, DType::u32, grid.count() + 1},
                    {kBitmaps, DType::u64, grid.count() * kGroupBitmaps},
                    {kValues, e.dtype, e.part(kValues).count()}});
  const PaperParts parts(e);
  require(parts.offsets[0] == 0, "tca_bme: the first offset is {}, not 0", parts.offsets[0]);

  int64_t nonzeros = 0;
  for (int64_t group = 0; group < grid.count(); ++group) {
    const int64_t begin = parts.offsets[static_cast<size_t>(group)];
    const int64_t end = parts.offsets[static_cast<size_t>(group + 1)];
    const int64_t count = checked_nonzeros(
        parts.bitmaps.subspan(static_cast<size_t>(group * kGroupBitmaps), kGroupBitmaps), group,
        e.rows - group / grid.columns * kGroupTile, e.columns - group % grid.columns * kGroupTile);
    require(end == begin + padded_values(count),
            "tca_bme: offsets {} to {} of GroupTile {} are not those of {} nonzeros", begin, end,
            group, count);
    require(end <= std::ssize(parts.values),
            "tca_bme: offset {} of GroupTile {} is after {} values", end, group,
            parts.values.size());
    const auto values = parts.values.subspan(static_cast<size_t>(begin));
    int64_t zeros = 0;
    for (int64_t i = 0; i < count; ++i) {
      zeros += (values[static_cast<size_t>(i)] & 0x7fff) == 0 ? 1 : 0;
    }
    require(zeros == 0, "tca_bme: {} nonzeros of GroupTile {} are 0", zeros, group);
    for (int64_t i = count; i < end - begin; ++i) {
      require(values[static_cast<size_t>(i)] == 0, "tca_bme: the padding of GroupTile {} is not 0",
              group);
    }
    nonzeros += count;
  }
  require(std::ssize(parts.values) == int64_t{parts.offsets.back()},
          "tca_bme: {} values, but the last offset is {}", parts.values.size(),
          parts.offsets.back());
  require(nonzeros == e.nonzeros, "tca_bme: {} nonzeros, but {} bits are set", e.nonzeros,
          nonzeros);
}

}  // namespace sparsellm::tca_bme
