#pragma once

#include <cstdint>

namespace sparsellm::tca_bme {

// Version 2 of tca_bme: the bitmaps and nonzeros of SpInfer (Fan et al., EuroSys 2025, section 4.2)
// in the order in which the lanes of a warp want them. A record takes the place of the paper's
// GroupTile, a chunk that of a column of its TCTiles. Constants and arithmetic alone, for kernels
// too.
//
// The matrix, filled up with zeros to multiples of 64 rows and of 16 * chunks columns, is cut into
//   chunks   64 x 16
//   records  64 x 16 * chunks: `chunks` of them, 4 or 8, from left to right; 8 if values are pairs
// The records of the first 64 rows lie from left to right, then those of the next, and so on.
// Parts, R being the number of records:
//   layout   u32 [2]      chunks, 0 for single or 1 for pair
//   starts   u32 [R + 1]  record r has bytes [16 * starts[r], 16 * starts[r + 1])
//   records  u8 [16 * starts[R]]
//
// The two elements of a row that are neighbours and the first of which has an even column are a
// pair; e is 0 or 1 in it. In a chunk, the element of i = 0..3, par = 0..1, g = 0..7, p = 0..1,
// t = 0..3 and e is that of
//   row     16 i + 8 par + g
//   column   8 p +  2 t  + e
// which makes register 2 p + par of lane 4 g + t the pair of A that mma.m16n8k16 takes in tile i.
//
// A record, little-endian:
//   masks    chunk after chunk, 8 x 8 words of 16 bits E[g][2 t + par]; the bit of an element is
//            2 i + p + 8 e
//   offsets  chunk after chunk, u16 [t][2 i + par]: where in the record, in bytes, the values of
//            these i, par, t begin
//   values   chunk after chunk, the nonzeros in the order i, par, t, p, g, e, the last fastest
//   zeros    up to a multiple of 16 bytes
// That is `single`. `pair`, for few nonzeros, has a bit and two values for each pair with a
// nonzero:
//   masks    every two chunks c = 0, 1 share 8 x 8 words; the bit of a pair is 2 i + p + 8 c
//   values   in the order i, par, t, p, g; the zero of a pair is no negative zero
// 8 x 8 words are what ldmatrix takes: it hands lane 4 g + t the words of its own elements.
//
// What a kernel may rely on once an encoding is validated:
//   - Records neither overlap nor leave gaps. Each has header_bytes() and a value for each bit, up
//     to max_record_bytes(); how large the largest is, the differences of `starts` say.
//   - No bit is set for an element outside of the matrix, nor, for `pair`, for a pair without a
//     nonzero; the second element of a pair is 0 if it is outside.
//   - An offset is where the values of the bits before those of its i, par, t end. From the masks
//     and offsets alone the places of all values follow, and they are inside of the record.
//   - Where the values fill the last 16 bytes, nothing follows them. A kernel that loads both
//     elements of every `single` pair, set or not, reads from 2 bytes before the first value, which
//     are offsets, to 2 bytes past the last one: its buffers need 2 bytes more than the record.
inline constexpr int32_t kRecordVersion = 2;

inline constexpr int32_t kRecordRows = 64;
inline constexpr int32_t kChunkColumns = 16;
inline constexpr int32_t kChunkElements = kRecordRows * kChunkColumns;
inline constexpr int32_t kFewChunks = 4;  // in a record
inline constexpr int32_t kManyChunks = 8;
inline constexpr int32_t kRecordAlignment = 16;  // bytes, of a record
inline constexpr int32_t kMaskWords = 64;        // of a chunk, or of two
inline constexpr int32_t kChunkOffsets = 32;

inline constexpr int32_t kLanesInRow = 4;  // t
inline constexpr int32_t kLaneRows = 8;    // g
inline constexpr int32_t kRowTiles = 4;    // i
inline constexpr int32_t kHalves = 2;      // par, p and e

enum class RecordValues : uint32_t { single = 0, pair = 1 };

// What is the same in all records of a matrix.
struct RecordLayout {
  int32_t chunks = kFewChunks;
  RecordValues values = RecordValues::single;

  constexpr bool operator==(const RecordLayout&) const = default;
  constexpr bool pairs() const { return values == RecordValues::pair; }
  constexpr int32_t columns() const { return chunks * kChunkColumns; }
  constexpr int32_t mask_bytes() const {
    return chunks * kMaskWords * int32_t{sizeof(uint16_t)} / (pairs() ? 2 : 1);
  }
  constexpr int32_t header_bytes() const {
    return mask_bytes() + chunks * kChunkOffsets * int32_t{sizeof(uint16_t)};
  }
  // Of a set bit.
  constexpr int32_t value_bytes() const { return (pairs() ? 2 : 1) * int32_t{sizeof(uint16_t)}; }
  // Of a record with this many bits set.
  constexpr int32_t record_bytes(int32_t bits) const {
    const int32_t bytes = header_bytes() + bits * value_bytes();
    return (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
  }
  constexpr int32_t max_record_bytes() const {
    return record_bytes(chunks * kChunkElements / (pairs() ? 2 : 1));
  }
};
static_assert(RecordLayout{kManyChunks, RecordValues::single}.max_record_bytes() <= UINT16_MAX &&
                  RecordLayout{kManyChunks, RecordValues::pair}.max_record_bytes() <= UINT16_MAX,
              "offsets are of 16 bits");

// The layout that is the fastest for a matrix of this many elements: more chunks in a record when
// there are fewer nonzeros in each; pairs, half as many to load for a third more bytes, when loads
// from shared memory take longer than the stream.
constexpr RecordLayout record_layout_for(int64_t elements, int64_t nonzeros) {
  constexpr int64_t kManyChunksPercent = 35;  // of nonzeros, at most
  constexpr int64_t kPairPercent = 21;
  static_assert(kPairPercent <= kManyChunksPercent, "pairs are in records of many chunks");
  const auto at_most = [&](int64_t percent) {
    return nonzeros <= elements / 100 * percent + elements % 100 * percent / 100;
  };
  return {.chunks = at_most(kManyChunksPercent) ? kManyChunks : kFewChunks,
          .values = at_most(kPairPercent) ? RecordValues::pair : RecordValues::single};
}

// The records of a matrix.
struct RecordGrid {
  int64_t row_blocks = 0;  // of 64 rows
  int64_t columns = 0;     // of records

  constexpr int64_t count() const { return row_blocks * columns; }
  constexpr int64_t index(int64_t row_block, int64_t column) const {
    return row_block * columns + column;
  }
  constexpr int64_t row_block(int64_t index) const { return index / columns; }
  constexpr int64_t column(int64_t index) const { return index % columns; }
};
constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }
constexpr RecordGrid record_grid(int64_t rows, int64_t columns, const RecordLayout& layout) {
  return {.row_blocks = ceil_div(rows, kRecordRows),
          .columns = ceil_div(columns, layout.columns())};
}

// Where in the masks (in words) and in the offsets of a record things are.
constexpr int32_t mask_word(const RecordLayout& layout, int32_t chunk, int32_t g, int32_t t,
                            int32_t par) {
  return (layout.pairs() ? chunk / 2 : chunk) * kMaskWords + g * 8 + 2 * t + par;
}
constexpr int32_t offset_index(int32_t chunk, int32_t i, int32_t par, int32_t t) {
  return chunk * kChunkOffsets + t * 8 + 2 * i + par;
}

}  // namespace sparsellm::tca_bme
