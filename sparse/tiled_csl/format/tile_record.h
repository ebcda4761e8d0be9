#pragma once

#include <cstdint>

#include "sparse/tiled_csl/format/tile_layout.h"

namespace sparsellm::tiled_csl {

// Version 2 of tiled_csl: the nonzeros of a tile with the places where a kernel stores them, as in
// Flash-LLM's Tiled-CSL (Xia et al., VLDB 2024, section 4.3), in about 3 bytes each instead of 4.
// Constants and arithmetic alone, for kernels too.
//
// The paper has 16 bits of location for each nonzero, in an order in which a warp's stores meet few
// bank conflicts. Here the lane that stores a value says which bank it goes to: lane l has the 256
// elements of bank l of the tile, of which 8 bits name one, and stores of a warp cannot conflict. A
// lane stores 8 values for each group that the tile has. Banks with more nonzeros than that put
// some into the spare places of group 0 of a lane that has fewer, and the others are words with a
// location of their own.
//
// Columns are permuted inside of each 16 x 64 elements, so that a lane finds its part of x, as
// mma.m16n8k16 takes it for all four steps over K, in 16 columns that are neighbours: the element
// of step s, half h, lane t of four and e = 0, 1 has column 16 t + 4 s + 2 h + e, and lies at
// position 16 s + 8 h + 2 t + e of its row, which is swizzled as tile_layout.h says.
//
// Parts, T being the number of tiles:
//   starts   u32 [T + 1]          tile t has bytes [16 * starts[t], 16 * starts[t + 1])
//   records  u8 [16 * starts[T]]  one of each tile
// A record is cut into pieces, which lie kPieceBytes from each other; the last one is as long as it
// has to be. A piece, little-endian:
//   groups     u8, 0 to kPieceGroups
//   flags      u8: kLastPiece, the last of its record; kHasHosts, the first of one with groups
//   words      u16, their number
//   hosts      u8 [32], with kHasHosts: h of lane l says that from slot h % 8 of group 0 on its
//              values go to bank h / 8; 8 l where it stores none of other banks
//   words      u32 [words]: a value in the low half, its place in bytes in the high one
//   zeros      up to a multiple of 16 bytes
//   values     u16 [groups][32 lanes][8 slots]
//   locations  u8 [groups][32 lanes][8 slots]: row / 2, and 64 for e = 1, 128 for an odd row
//   zeros      up to kPieceBytes; of the last piece, none
//
// What a kernel may rely on once an encoding is validated:
//   - Records neither overlap nor leave gaps, and are made of whole pieces.
//   - No two nonzeros have one place; none is outside of the matrix. Values that are 0 have the
//     place of an element that is 0, so that a kernel may treat them like all others.
//   - A record without nonzeros is a piece of 16 bytes.
inline constexpr int32_t kRecordVersion = 2;

inline constexpr int kRecordAlignment = 16;  // bytes
inline constexpr int kSlots = 8;             // of a lane in a group
inline constexpr int kBankElements = kTileElements / kBanks;
inline constexpr int kMaxGroups = kBankElements / kSlots;
inline constexpr int kGroupValueBytes = kWarp * kSlots * 2;
inline constexpr int kGroupBytes = kGroupValueBytes + kWarp * kSlots;
inline constexpr int kPieceGroups = 8;
// A few words beside 8 groups; two of them for each of 8 warps, with their tiles, fill the shared
// memory of compute capability 9.0.
inline constexpr int kPieceBytes = kPieceGroups * kGroupBytes + 128;

inline constexpr uint32_t kLastPiece = 1;
inline constexpr uint32_t kHasHosts = 2;
inline constexpr int kPieceHeader = 4;  // bytes
inline constexpr int kWordBytes = 4;

constexpr uint32_t record_position(uint32_t column) {
  const uint32_t t = column / 16;
  const uint32_t sh = column % 16 / 2;
  return sh * 8 + 2 * t + column % 2;
}
constexpr uint32_t column_at(uint32_t position) {
  return position % 8 / 2 * 16 + position / 8 * 2 + position % 2;
}

// The location byte of a place, and the place in its bank.
constexpr uint32_t location_byte(uint32_t location) {
  const uint32_t row = row_of(location);
  return row / 2 | location % 2 << 6 | row % 2 << 7;
}
constexpr uint32_t location_in(uint32_t bank, uint32_t byte) {
  const uint32_t row = byte % 64 * 2 + byte / 128;
  return row * kTileColumns + bank * 2 + byte / 64 % 2;
}

constexpr int aligned_bytes(int bytes) {
  return (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}
// What comes before the values of a piece.
constexpr int head_bytes(bool hosts, int words) {
  return aligned_bytes(kPieceHeader + (hosts ? kWarp : 0) + words * kWordBytes);
}
constexpr int piece_bytes(int groups, bool hosts, int words) {
  return head_bytes(hosts, words) + groups * kGroupBytes;
}

// How many groups and words are in piece after piece of a record: of each as many as there is room
// for, groups first.
struct PieceSizes {
  int groups = 0;
  int words = 0;
};
constexpr PieceSizes next_piece(int groups_left, int words_left, bool hosts) {
  const int groups = groups_left < kPieceGroups ? groups_left : kPieceGroups;
  const int room =
      (kPieceBytes - groups * kGroupBytes - kPieceHeader - (hosts ? kWarp : 0)) / kWordBytes;
  return {.groups = groups, .words = words_left < room ? words_left : room};
}
constexpr int record_bytes(int groups, int words) {
  for (int bytes = 0;; bytes += kPieceBytes) {
    const bool hosts = bytes == 0 && groups > 0;  // of the first piece
    const PieceSizes piece = next_piece(groups, words, hosts);
    groups -= piece.groups;
    words -= piece.words;
    if (groups == 0 && words == 0) {
      return bytes + piece_bytes(piece.groups, hosts, piece.words);
    }
  }
}
// The limit for files. The encoder stays far below: a tile that has all words needs no groups.
inline constexpr int kMaxRecordBytes = record_bytes(kMaxGroups, kTileElements);

}  // namespace sparsellm::tiled_csl
