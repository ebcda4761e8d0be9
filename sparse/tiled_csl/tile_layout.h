#pragma once

#include <cstdint>
#include <span>

namespace sparsellm::tiled_csl {

// How a tile lies in shared memory, and what a word of the encoding says about it.
//
// A row of a tile is 64 elements of 2 bytes: 128 bytes, all 32 banks of 4 bytes once. Its chunk c
// of 16 bytes (columns 8 c ... 8 c + 7) is put at chunk c ^ (row mod 8) of the row. ldmatrix reads
// 8 x 8 elements at a time, one chunk c of rows 8 i ... 8 i + 7: those lie at chunks c ^ 0 ...
// c ^ 7, which are all eight, 4 banks each. So every bank is read once, without conflicts.

inline constexpr int kTileRows = 128;
inline constexpr int kTileColumns = 64;
inline constexpr int kTileElements = kTileRows * kTileColumns;
inline constexpr int kChunk = 8;  // elements of 16 bytes
inline constexpr int kBanks = 32;
inline constexpr int kWarp = 32;
inline constexpr int kAlignment = 4;  // of the first word of a tile, in words

constexpr uint32_t location_of(uint32_t row, uint32_t column) {
  return row * kTileColumns + ((column / kChunk) ^ (row % kChunk)) * kChunk + column % kChunk;
}
constexpr uint32_t row_of(uint32_t location) { return location / kTileColumns; }
constexpr uint32_t column_of(uint32_t location) {
  const uint32_t chunk = (location % kTileColumns / kChunk) ^ (row_of(location) % kChunk);
  return chunk * kChunk + location % kChunk;
}
// Two neighbours share a 4-byte word of a bank, which takes both of them at once.
constexpr uint32_t bank_of(uint32_t location) { return location / 2 % kBanks; }

constexpr uint32_t make_word(uint32_t value_bits, uint32_t location) {
  return value_bits << 16 | location;
}
constexpr uint32_t value_bits_of(uint32_t word) { return word >> 16; }
constexpr uint32_t location_of_word(uint32_t word) { return word & 0xffffu; }
// Neither 0 nor -0, of f16 and bf16 alike.
constexpr bool is_nonzero(uint32_t value_bits) { return (value_bits & 0x7fffu) != 0; }

constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }
constexpr int64_t aligned_words(int64_t nonzeros) {
  return ceil_div(nonzeros, kAlignment) * kAlignment;
}

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

// The words of a tile without those that fill it up.
inline std::span<const uint32_t> without_padding(std::span<const uint32_t> tile) {
  while (!tile.empty() && !is_nonzero(value_bits_of(tile.back()))) {
    tile = tile.first(tile.size() - 1);
  }
  return tile;
}

}  // namespace sparsellm::tiled_csl
