#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/base/error.h"
#include "sparse/tca_bme/v1/paper_layout.h"

namespace sparsellm::tca_bme {
namespace {

static_assert(std::endian::native == std::endian::little, "the parts are little-endian");

constexpr int64_t kGroupsPerRange = 8;

// The elements of a GroupTile, row by row, as bits; 0 outside of the matrix.
using GroupElements = std::array<uint16_t, kGroupElements>;

void copy_group(const Tensor& w, int64_t group, GroupElements& elements) {
  const int64_t group_columns = group_grid(w.size(0), w.size(1)).columns;
  const int64_t row = group / group_columns * kGroupTile;
  const int64_t column = group % group_columns * kGroupTile;
  const int64_t rows = std::min(kGroupTile, w.size(0) - row);
  const int64_t columns = std::min(kGroupTile, w.size(1) - column);
  if (rows < kGroupTile || columns < kGroupTile) {
    elements.fill(0);
  }
  const int64_t item = size_of(w.dtype());
  const auto* const first =
      static_cast<const std::byte*>(w.raw()) + (row * w.row_stride() + column) * item;
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(elements.data() + r * kGroupTile, first + r * w.row_stride() * item,
                static_cast<size_t>(columns * item));
  }
}

// Bit i: element i of eight is neither 0 nor -0.
uint64_t nonzero_bits(const uint16_t* eight) {
  constexpr uint64_t kMagnitudes = 0x7fff7fff7fff7fff;
  constexpr uint64_t kTopBits = 0x8000800080008000;
  // Moves bits 0, 16, 32 and 48 to bits 48 to 51; all other products land elsewhere.
  constexpr uint64_t kGather = 1ull << 48 | 1ull << 33 | 1ull << 18 | 1ull << 3;
  uint64_t bits = 0;
  for (int half = 0; half < 2; ++half) {
    uint64_t four = 0;
    std::memcpy(&four, eight + 4 * half, sizeof(four));
    // The sum carries into the top bit of an element unless its magnitude is 0, and no further.
    const uint64_t nonzero = ((four & kMagnitudes) + kMagnitudes) & kTopBits;
    bits |= ((nonzero >> 15) * kGather >> 48 & 0xf) << (4 * half);
  }
  return bits;
}

void make_bitmaps(const GroupElements& elements, uint64_t* bitmaps) {
  for (int64_t b = 0; b < kGroupBitmaps; ++b) {
    const TileOrigin origin = bitmap_tile_origin(b);
    const uint16_t* const tile = elements.data() + origin.row * kGroupTile + origin.column;
    uint64_t bitmap = 0;
    for (int64_t r = 0; r < kBitmapTile; ++r) {
      bitmap |= nonzero_bits(tile + r * kGroupTile) << (r * kBitmapTile);
    }
    bitmaps[b] = bitmap;
  }
}

// Returns the number of nonzeros. Stores an element wherever the next nonzero goes, so that no
// branch depends on the bits: the room has to be that of a whole GroupTile.
int64_t compact(const GroupElements& elements, const uint64_t* bitmaps, GroupElements& nonzeros) {
  int64_t count = 0;
  for (int64_t b = 0; b < kGroupBitmaps; ++b) {
    const TileOrigin origin = bitmap_tile_origin(b);
    const uint16_t* const tile = elements.data() + origin.row * kGroupTile + origin.column;
    for (int64_t r = 0; r < kBitmapTile; ++r) {
      const uint64_t bits = bitmaps[b] >> (r * kBitmapTile);
      for (int64_t c = 0; c < kBitmapTile; ++c) {
        nonzeros[static_cast<size_t>(count)] = tile[r * kGroupTile + c];
        count += static_cast<int64_t>(bits >> c & 1);
      }
    }
  }
  return count;
}

}  // namespace

EncodedWeight encode_paper(const Tensor& w, ThreadPool& threads) {
  const int64_t groups = group_grid(w.size(0), w.size(1)).count();
  NewPart offsets = new_part<uint32_t>(std::string(kOffsets), DType::u32, groups + 1);
  NewPart bitmaps = new_part<uint64_t>(std::string(kBitmaps), DType::u64, groups * kGroupBitmaps);

  std::atomic<int64_t> nonzeros = 0;
  threads.parallel_for(groups, kGroupsPerRange, [&](int64_t begin, int64_t end) {
    GroupElements elements;
    int64_t range_nonzeros = 0;
    for (int64_t group = begin; group < end; ++group) {
      uint64_t* const group_bitmaps = bitmaps.values.data() + group * kGroupBitmaps;
      copy_group(w, group, elements);
      make_bitmaps(elements, group_bitmaps);
      int64_t count = 0;
      for (int64_t b = 0; b < kGroupBitmaps; ++b) {
        count += std::popcount(group_bitmaps[b]);
      }
      offsets.values[static_cast<size_t>(group + 1)] = static_cast<uint32_t>(padded_values(count));
      range_nonzeros += count;
    }
    nonzeros += range_nonzeros;
  });
  require(offsets_hold(nonzeros, groups), "{} nonzeros are more than 32-bit offsets of values hold",
          nonzeros.load());
  offsets.values[0] = 0;
  for (size_t group = 0; group < static_cast<size_t>(groups); ++group) {
    offsets.values[group + 1] += offsets.values[group];
  }

  NewPart values =
      new_part<uint16_t>(std::string(kValues), w.dtype(), int64_t{offsets.values.back()});
  threads.parallel_for(groups, kGroupsPerRange, [&](int64_t begin, int64_t end) {
    GroupElements elements;
    GroupElements group_values;
    for (int64_t group = begin; group < end; ++group) {
      copy_group(w, group, elements);
      const int64_t count =
          compact(elements, bitmaps.values.data() + group * kGroupBitmaps, group_values);
      const int64_t padded = padded_values(count);
      std::fill(group_values.begin() + count, group_values.begin() + padded, uint16_t{0});
      std::copy_n(group_values.begin(), padded,
                  values.values.begin() + offsets.values[static_cast<size_t>(group)]);
    }
  });

  EncodedWeight e{.format = std::string(kName),
                  .version = kPaperVersion,
                  .dtype = w.dtype(),
                  .rows = w.size(0),
                  .columns = w.size(1),
                  .nonzeros = nonzeros,
                  .parts = {}};
  e.parts.push_back(std::move(offsets.part));
  e.parts.push_back(std::move(bitmaps.part));
  e.parts.push_back(std::move(values.part));
  return e;
}

int64_t paper_formula_bytes(const EncodedWeight& e) {
  const int64_t groups = group_grid(e.rows, e.columns).count();
  return 4 * (groups + 1) + 8 * groups * kGroupBitmaps + 2 * e.nonzeros;
}

}  // namespace sparsellm::tca_bme
