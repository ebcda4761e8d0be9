#pragma once

#include <cstdint>

namespace sparsellm::tiled_csl {

// The tiles that a matrix is cut into, and how one lies in shared memory: what both versions of the
// encoding share.
//
// A row of a tile is 64 elements of 2 bytes: 128 bytes, all 32 banks of 4 bytes once. Its chunk c
// of 16 bytes is put at chunk c ^ (row mod 8) of the row. ldmatrix reads 8 x 8 elements at a time,
// one chunk c of rows 8 i ... 8 i + 7: those lie at chunks c ^ 0 ... c ^ 7, which are all eight, 4
// banks each. So every bank is read once, without conflicts. It is the 128-byte swizzle of tensor
// maps and wgmma, too.
//
// Locations count 2-byte elements of the tile's 16 KiB.

inline constexpr int kTileRows = 128;
inline constexpr int kTileColumns = 64;
inline constexpr int kTileElements = kTileRows * kTileColumns;
inline constexpr int kChunk = 8;  // elements of 16 bytes
inline constexpr int kBanks = 32;
inline constexpr int kWarp = 32;

// Where the element at `position` of a row lies.
constexpr uint32_t swizzled(uint32_t row, uint32_t position) {
  return row * kTileColumns + ((position / kChunk) ^ (row % kChunk)) * kChunk + position % kChunk;
}
constexpr uint32_t row_of(uint32_t location) { return location / kTileColumns; }
constexpr uint32_t position_of(uint32_t location) {
  return swizzled(row_of(location), location % kTileColumns) % kTileColumns;
}
// Two neighbours share a 4-byte word of a bank, which takes both of them at once.
constexpr uint32_t bank_of(uint32_t location) { return location / 2 % kBanks; }

// Neither 0 nor -0, of f16 and bf16 alike.
constexpr bool is_nonzero(uint32_t value_bits) { return (value_bits & 0x7fffu) != 0; }

constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// The tiles of a matrix; tile (i, j) is number i * columns + j.
struct TileGrid {
  int64_t rows = 0;
  int64_t columns = 0;

  constexpr int64_t count() const { return rows * columns; }
};
constexpr TileGrid tile_grid(int64_t matrix_rows, int64_t matrix_columns) {
  return {.rows = ceil_div(matrix_rows, kTileRows),
          .columns = ceil_div(matrix_columns, kTileColumns)};
}

}  // namespace sparsellm::tiled_csl
