#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"
#include "sparse/encoded_weight.h"
#include "sparse/weight_matrix.h"

namespace sparsellm::tca_bme {

// Version 1 of tca_bme (SpInfer, Fan et al., EuroSys 2025, section 4.2).
//
// The matrix, filled up with zeros to multiples of 64, is cut into
//   GroupTiles   64 x 64, row by row
//   TCTiles      16 x 16, 16 to a GroupTile, row by row
//   BitmapTiles  8 x 8, 4 to a TCTile, column by column: the order of the four 8 x 8 blocks of A in
//                the fragment of mma.m16n8k16
// and bit 8 r + c of the bitmap of a BitmapTile says that its element (r, c) is a nonzero.
// Parts, with NGT GroupTiles and NBT = 64 NGT BitmapTiles:
//   gtile_offsets  u32 [NGT + 1]  GTileOffset: GroupTile g has values[gtile_offsets[g], ...[g + 1])
//   bitmaps        u64 [NBT]      Bitmap
//   values         [last offset]  Values: the nonzeros in the order of bitmaps and bits; those of
//                                 each GroupTile filled up with zeros to a multiple of 8, so that
//                                 every GroupTile starts at 16 bytes
// The paper counts 4 (NGT + 1) + 8 NBT + 2 NNZ bytes; what comes on top is that filling.
inline constexpr std::string_view kName = "tca_bme";
inline constexpr int32_t kPaperVersion = 1;

inline constexpr int64_t kBitmapTile = 8;  // rows, and columns
inline constexpr int64_t kTcTile = 16;
inline constexpr int64_t kGroupTile = 64;
inline constexpr int64_t kGroupElements = kGroupTile * kGroupTile;
inline constexpr int64_t kGroupBitmaps = kGroupElements / (kBitmapTile * kBitmapTile);
inline constexpr int64_t kValueAlignment = 8;  // values

inline constexpr std::string_view kOffsets = "gtile_offsets";
inline constexpr std::string_view kBitmaps = "bitmaps";
inline constexpr std::string_view kValues = "values";

// The first row and column of a BitmapTile in its GroupTile.
struct TileOrigin {
  int64_t row = 0;
  int64_t column = 0;
};
constexpr TileOrigin bitmap_tile_origin(int64_t bitmap) {
  constexpr int64_t kTcTiles = kGroupTile / kTcTile;  // in a row
  const int64_t tc_tile = bitmap / 4;
  const int64_t quarter = bitmap % 4;
  return {.row = tc_tile / kTcTiles * kTcTile + quarter % 2 * kBitmapTile,
          .column = tc_tile % kTcTiles * kTcTile + quarter / 2 * kBitmapTile};
}

// The GroupTiles of a matrix.
struct GroupGrid {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t count() const { return rows * columns; }
};
constexpr GroupGrid group_grid(int64_t rows, int64_t columns) {
  const auto tiles = [](int64_t size) { return size / kGroupTile + (size % kGroupTile != 0); };
  return {.rows = tiles(rows), .columns = tiles(columns)};
}

constexpr int64_t padded_values(int64_t nonzeros) {
  return (nonzeros + kValueAlignment - 1) / kValueAlignment * kValueAlignment;
}

// Whether 32-bit offsets reach all values, however many a GroupTile is filled up with.
constexpr bool offsets_hold(int64_t nonzeros, int64_t group_tiles) {
  return nonzeros <= int64_t{UINT32_MAX} - group_tiles * (kValueAlignment - 1);
}

// The parts of an encoding, the values as their bits.
struct PaperParts {
  explicit PaperParts(const EncodedWeight& e)
      : offsets(e.part(kOffsets).values<uint32_t>()),
        bitmaps(e.part(kBitmaps).values<uint64_t>()),
        values(e.part(kValues).values<uint16_t>()) {}

  std::span<const uint32_t> offsets;
  std::span<const uint64_t> bitmaps;
  std::span<const uint16_t> values;
};

// As the functions of WeightFormat, for encodings of this version.
EncodedWeight encode_paper(const Tensor& w, ThreadPool& threads);  // f16 or bf16
void validate_paper(const EncodedWeight& e);
int64_t paper_formula_bytes(const EncodedWeight& e);
std::optional<EncodedWeight> slice_rows_paper(const EncodedWeight& e, Range rows);
std::optional<EncodedWeight> slice_columns_paper(const EncodedWeight& e, Range columns);
std::optional<EncodedWeight> concat_rows_paper(std::span<const EncodedWeight* const> parts);

}  // namespace sparsellm::tca_bme
