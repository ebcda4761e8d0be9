#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"
#include "sparse/encoded_weight.h"
#include "sparse/format.h"
#include "sparse/record_slice.h"
#include "sparse/tca_bme/format/record_arrays.h"
#include "sparse/tca_bme/format/record_layout.h"
#include "sparse/tca_bme/format/records_for.h"
#include "sparse/weight_matrix.h"

namespace sparsellm::tca_bme {

// Encodings of version 2 (record_layout.h) on the host.
inline constexpr int64_t kLayoutWords = 2;

// The bits of the values of one i, par, t of a chunk, in the order of the values: that of an
// element is 16 p + 2 g + e, that of a pair 8 p + g.
inline uint32_t value_bits(const RecordLayout& layout, const std::byte* record, int32_t chunk,
                           int32_t i, int32_t par, int32_t t) {
  uint32_t bits = 0;
  const std::byte* const words = record + mask_word(layout, chunk, 0, t, par) * 2;
  for (int32_t g = 0; g < kLaneRows; ++g) {
    const uint32_t word = static_cast<uint32_t>(load_from<uint16_t>(words + g * 16)) >> (2 * i);
    if (layout.pairs()) {
      const uint32_t two = word >> (8 * (chunk % 2));
      bits |= ((two & 1) | (two & 2) << 7) << g;
    } else {
      bits |= ((word & 1) | (word >> 7 & 2) | (word & 2) << 15 | (word & 0x200) << 8) << (2 * g);
    }
  }
  return bits;
}

// The layout in the part of that name; throws Error if it is none.
RecordLayout read_record_layout(const EncodedWeight& e);

inline RecordTiling record_tiling(int64_t rows, int64_t columns, const RecordLayout& layout) {
  return {.rows = rows,
          .columns = columns,
          .record_rows = kRecordRows,
          .record_columns = layout.columns()};
}

// The parts of a valid encoding.
struct RecordParts : RecordArrays {
  explicit RecordParts(const EncodedWeight& e) : RecordParts(e, read_record_layout(e)) {}

  RecordLayout layout;

 private:
  RecordParts(const EncodedWeight& e, const RecordLayout& layout_of_e)
      : RecordArrays(e, record_grid(e.rows, e.columns, layout_of_e)), layout(layout_of_e) {}
};

// What a file may have wrong. Layout, starts and sizes, from which it follows that each record has
// its masks and offsets, are checked at once; then the records, a few at a time, wherever their
// bytes have been copied to.
class RecordChecker {
 public:
  explicit RecordChecker(const EncodedWeight& e);  // throws Error; keeps no view of e

  const RecordLayout& layout() const { return layout_; }
  std::span<const uint32_t> starts() const { return starts_; }
  RecordTiling tiling() const { return record_tiling(rows_, columns_, layout_); }
  // Throws Error if one of the `count` records from `first` on, which have these bytes, is wrong,
  // or if these are not as many as the starts say. Returns how many nonzeros they have.
  int64_t check(int64_t first, int64_t count, std::span<const std::byte> records) const;

 private:
  int64_t rows_;
  int64_t columns_;
  RecordLayout layout_;
  RecordGrid grid_;
  std::vector<uint32_t> starts_;
};

// Whether `starts` reach all records of any matrix of this size, and of one with this many
// nonzeros.
bool starts_hold_any(int64_t rows, int64_t columns);
bool starts_hold(int64_t rows, int64_t columns, int64_t nonzeros,
                 RecordsFor goal = RecordsFor::speed);

// The part of an encoding that says in which layout it is; a header may have it, and no other part.
EncodedPart layout_part(const RecordLayout& layout);
// That of an encoding, or of a header; of one without parts the one for speed.
RecordLayout layout_of(const EncodedWeight& header);
// What an encoding of this layout was chosen for, as far as it tells.
RecordsFor goal_of(const EncodedWeight& e);

// As the functions of WeightFormat, for encodings of this version.
EncodedWeight encode_records(const Tensor& w, LayoutFor goal, ThreadPool& threads);  // f16 or bf16
EncodedWeight encode_records(const Tensor& w, RecordsFor goal, ThreadPool& threads);
void validate_records(const EncodedWeight& e, ThreadPool& threads);
// Of a matrix whose nonzeros are anywhere, in layout_of() the header.
int64_t expected_record_bytes(const EncodedWeight& header);
std::optional<EncodedWeight> slice_rows_records(const EncodedWeight& e, Range rows);
std::optional<EncodedWeight> slice_columns_records(const EncodedWeight& e, Range columns);
std::optional<EncodedWeight> concat_rows_records(std::span<const EncodedWeight* const> parts);

}  // namespace sparsellm::tca_bme
