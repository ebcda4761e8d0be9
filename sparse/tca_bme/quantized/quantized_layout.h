#pragma once

#include <cstdint>

#include "sparse/tca_bme/format/record_layout.h"

namespace sparsellm::tca_bme {

// Version 3 of tca_bme: bitmaps over values of 8 or 4 bits, in the order in which the left operand
// of mma.m16n8k32 takes them. Constants and arithmetic alone, for kernels too.
//
// The matrix, filled up with zeros to multiples of 64 rows and of 128 columns, is cut into
//   records  64 x 128, those of the first 64 rows from left to right, then those of the next
//   chunks   32 x 32, eight of a record: chunk c has its rows from 32 (c % 2) and its columns from
//            32 (c / 2) on
//   units    four neighbouring columns of a row, which are one register of the operand
// Parts, R being the number of records:
//   layout   u32 [3]      the type of values: 0 i8, 1 f8, 2 i4; offsets of a chunk: 16 or 8;
//                         columns that share a scale: 0 for a whole row (i8, f8), else 32, 64, 128
//   starts   u32 [R + 1]  record r has bytes [16 * starts[r], 16 * starts[r + 1])
//   records  u8 [16 * starts[R]]
//   scales   f32 [rows]   of i8 and f8 alone
//
// In a chunk, the element of j, q, h = 0..1, g = 0..7, t = 0..3 and k = 0..3 is that of
//   row     16 j + 8 q + g
//   column  16 h +  4 t + k
// which makes register 2 h + q of lane 4 g + t a unit of tile j.
//
// A record, little-endian:
//   masks    chunk after chunk, 8 x 8 words of 16 bits E[g][2 t + q]; the bit of an element is
//            4 k + 2 j + h. The bits of a unit lie 4 apart: a multiply-add makes the selector of a
//            byte permutation of them.
//   offsets  where in the record the values of some bits begin, u16, in bytes, of i4 in nibbles:
//              16 a chunk: every two chunks [t][c % 2][2 j + q], of the values of c, j, q, t
//               8 a chunk: every four chunks [t][c % 4][q], of the values of c, q, t
//   scales   of i4: f16 [group][g][2 m + q], that of row 16 m + 8 q + g with m = 0..3: a lane takes
//            all of its own at once
//   values   the nonzeros, the last of an order the fastest
//              8 bits, 16 offsets:  c, j, q, t, h, g, k
//              8 bits, 8 offsets:   c, q, t, j, h, g, k
//              4 bits, 8 offsets:   c, q, t, j, g, h, k; nibbles of code + 8, the low one first
//   zeros    up to a multiple of 16 bytes
// An element whose code is zero (of f8 a zero of either sign) has no bit. Scales of rows and of
// groups that are not in the matrix are 1.
//
// The formats dense_i8 and dense_i4 (dense_narrow.h) have the same parts, with 0 offsets of a
// chunk: records of one size, which have neither masks nor offsets, but a value for each element.
// They lie as the registers of the operand do, the 16 bytes of a lane side by side:
//   i8  the byte (((c * 2 + j) * 8 + g) * 4 + t) * 16 + 4 (2 h + q) + k of the values
//   i4  likewise, with c / 4 * 2 + c % 2 for c, in the low nibble if c / 2 is even, else in the
//       high one: chunks c and c + 2, which follow each other in a row, share their bytes
// An element that is not in the matrix has the code 0, of i4 the nibble 8. That starts follow from
// the shape is worth 4 bytes for each 8,192 elements: files, slices and uploads are those of all
// records.
//
// What a kernel may rely on once an encoding is validated: as of version 2 (record_layout.h), and
// scales are finite and positive.
inline constexpr int32_t kQuantizedVersion = 3;

struct QuantizedLayout {
  enum class Values : uint32_t { i8 = 0, f8 = 1, i4 = 2 };
  Values values = Values::i8;
  int32_t offsets = 16;  // of a chunk; 0: a dense record
  int32_t group = 0;     // columns that share a scale; 0: all

  static constexpr int32_t kChunks = 8;
  static constexpr int32_t kColumns = 128;
  static constexpr int32_t kChunkSide = 32;

  constexpr bool operator==(const QuantizedLayout&) const = default;
  constexpr bool nibbles() const { return values == Values::i4; }
  constexpr bool dense() const { return offsets == 0; }
  constexpr int32_t groups() const { return group == 0 ? 0 : kColumns / group; }  // of a record
  constexpr int32_t mask_bytes() const {
    return dense() ? 0 : kChunks * kMaskWords * int32_t{sizeof(uint16_t)};
  }
  constexpr int32_t offset_bytes() const { return kChunks * offsets * int32_t{sizeof(uint16_t)}; }
  constexpr int32_t scale_bytes() const {
    return groups() * kRecordRows * int32_t{sizeof(uint16_t)};
  }
  constexpr int32_t header_bytes() const { return mask_bytes() + offset_bytes() + scale_bytes(); }
  // Of a record with this many bits set; a dense one has as many as elements.
  constexpr int32_t record_bytes(int32_t bits) const {
    const int32_t values_in_record = dense() ? kRecordRows * kColumns : bits;
    const int32_t bytes =
        header_bytes() + (nibbles() ? (values_in_record + 1) / 2 : values_in_record);
    return (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
  }
  constexpr int32_t max_record_bytes() const { return record_bytes(kRecordRows * kColumns); }
};
static_assert(2 * QuantizedLayout{QuantizedLayout::Values::i4, 8, 32}.max_record_bytes() <=
                  UINT16_MAX,
              "offsets are of 16 bits");

// The layout that is the fastest: with fewer offsets there is less to read and to add, and with
// many nonzeros more lanes meet in a bank.
constexpr QuantizedLayout quantized_layout_for(QuantizedLayout::Values values, int32_t group,
                                               int64_t elements, int64_t nonzeros) {
  constexpr int64_t kFewOffsetsPercent = 45;  // of nonzeros, at most
  const bool few =
      values == QuantizedLayout::Values::i4 ||
      nonzeros <= elements / 100 * kFewOffsetsPercent + elements % 100 * kFewOffsetsPercent / 100;
  return {.values = values, .offsets = few ? 8 : 16, .group = group};
}

constexpr RecordGrid quantized_grid(int64_t rows, int64_t columns) {
  return {.row_blocks = ceil_div(rows, kRecordRows),
          .columns = ceil_div(columns, QuantizedLayout::kColumns)};
}

// Where in the masks (in words) and in the offsets of a record things are.
constexpr int32_t quantized_mask_word(int32_t chunk, int32_t g, int32_t t, int32_t q) {
  return chunk * kMaskWords + g * 8 + 2 * t + q;
}
constexpr int32_t quantized_offset_index(const QuantizedLayout& layout, int32_t chunk, int32_t j,
                                         int32_t q, int32_t t) {
  return layout.offsets == 16 ? chunk / 2 * 32 + t * 8 + chunk % 2 * 4 + 2 * j + q
                              : chunk / 4 * 32 + t * 8 + chunk % 4 * 2 + q;
}

// Where among the values of a dense record, in bytes, those of an element and of the three after it
// begin; `column` is a multiple of 4.
constexpr int32_t dense_values_at(const QuantizedLayout& layout, int32_t row, int32_t column) {
  const int32_t chunks = column / QuantizedLayout::kChunkSide / (layout.nibbles() ? 2 : 1);
  const int32_t tile = chunks * 4 + row / 16;  // 2 c + j
  const int32_t lane = row % 8 * kLanesInRow + column / 4 % kLanesInRow;
  const int32_t value_register = 2 * (column / 16 % 2) + row / 8 % 2;
  return (tile * 32 + lane) * 16 + 4 * value_register;
}
// Whether the values of i4 in these columns are the high nibbles.
constexpr bool is_high_nibble(int32_t column) {
  return column / QuantizedLayout::kChunkSide % 2 != 0;
}

// Of i4, in the scales of a record.
constexpr int32_t quantized_scale_index(int32_t group, int32_t row) {
  return group * kRecordRows + row % 8 * 8 + row / 8;
}

}  // namespace sparsellm::tca_bme
