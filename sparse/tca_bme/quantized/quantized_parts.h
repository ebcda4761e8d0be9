#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/parallel.h"
#include "sparse/encoded_weight.h"
#include "sparse/format.h"
#include "sparse/quantize/quantized_matrix.h"
#include "sparse/record_slice.h"
#include "sparse/tca_bme/format/record_arrays.h"
#include "sparse/tca_bme/quantized/quantized_layout.h"
#include "sparse/weight_matrix.h"

namespace sparsellm::tca_bme {

// Encodings of version 3 and of dense_i8 and dense_i4 (quantized_layout.h) on the host.
inline constexpr int64_t kQuantizedLayoutWords = 3;
inline constexpr std::string_view kScales = "scales";  // of rows
inline constexpr std::string_view kDenseI8 = "dense_i8";
inline constexpr std::string_view kDenseI4 = "dense_i4";
inline constexpr int32_t kDenseNarrowVersion = 1;

// Of tca_bme.
inline bool is_quantized(const EncodedWeight& e) { return e.version == kQuantizedVersion; }
// What dense_i8 and dense_i4 hold; nothing for another format.
std::optional<ValueType> dense_values(std::string_view format);
// In any format.
bool has_quantized_records(const EncodedWeight& e);

constexpr QuantizedLayout::Values values_of(ValueType type) {
  return type == ValueType::i8   ? QuantizedLayout::Values::i8
         : type == ValueType::f8 ? QuantizedLayout::Values::f8
                                 : QuantizedLayout::Values::i4;
}
constexpr ValueType type_of(QuantizedLayout::Values values) {
  return values == QuantizedLayout::Values::i8   ? ValueType::i8
         : values == QuantizedLayout::Values::f8 ? ValueType::f8
                                                 : ValueType::i4;
}

// The layout in the part of that name; throws Error if it is none of the format's. A header may
// have this part, and no other.
QuantizedLayout read_quantized_layout(const EncodedWeight& e);
EncodedPart quantized_layout_part(const QuantizedLayout& layout);

inline RecordTiling quantized_tiling(int64_t rows, int64_t columns) {
  return {.rows = rows,
          .columns = columns,
          .record_rows = kRecordRows,
          .record_columns = QuantizedLayout::kColumns};
}

// The parts of a valid encoding.
struct QuantizedParts : RecordArrays {
  explicit QuantizedParts(const EncodedWeight& e);

  QuantizedLayout layout;
  int64_t rows;
  int64_t columns;
  std::span<const float> scales;  // of rows; none of i4
};

// That in which encode_quantized() puts such a matrix in this format.
QuantizedLayout quantized_layout_in(std::string_view format, QuantizedLayout::Values values,
                                    int64_t group, int64_t elements, int64_t nonzeros);

// What a file may have wrong, as RecordChecker (format/record_parts.h); with the starts the scales
// of rows are checked.
class QuantizedChecker {
 public:
  explicit QuantizedChecker(const EncodedWeight& e);  // throws Error; keeps no view of e

  const QuantizedLayout& layout() const { return layout_; }
  std::span<const uint32_t> starts() const { return starts_; }
  std::span<const float> scales() const { return scales_; }
  RecordTiling tiling() const { return quantized_tiling(rows_, columns_); }
  int64_t check(int64_t first, int64_t count, std::span<const std::byte> records) const;
  // The part scales of some rows; nothing for another name.
  std::optional<EncodedPart> of_rows(std::string_view name, Range rows) const;

 private:
  std::string format_;
  int64_t rows_;
  int64_t columns_;
  QuantizedLayout layout_;
  RecordGrid grid_;
  std::vector<uint32_t> starts_;
  std::vector<float> scales_;
};

// Where records with so many bits begin, and where the last ends: [R + 1]. Throws Error if that is
// more than starts hold.
std::vector<uint32_t> quantized_starts(const QuantizedLayout& layout,
                                       std::span<const int32_t> record_bits);

// A valid matrix in this format, of tca_bme in version 3, in quantized_layout_in() it. `dtype`, f16
// or bf16, is what decode() makes of it and what it is multiplied with. The same bytes whatever the
// number of threads. Throws Error for what require_valid() refuses, for values that the format does
// not hold and for more than starts hold.
EncodedWeight encode_quantized(const QuantizedMatrix& q, std::string_view format, DType dtype,
                               ThreadPool& threads);
EncodedWeight encode_quantized(const QuantizedMatrix& q, DType dtype,
                               ThreadPool& threads);  // in tca_bme

// The codes and scales of a valid encoding: what encode_quantized() was given, but for negative
// zeros of f8, which are zeros.
QuantizedMatrix quantized_of(const EncodedWeight& e, ThreadPool& threads);
// Of some rows.
QuantizedMatrix quantized_rows(const QuantizedParts& parts, Range rows, ThreadPool& threads);

// What dequantize() makes of each code that may be stored with each scale of q, which are fewer
// than elements: [rows * groups(), 256 or 16], the last indexed by the lowest bits of a code.
OwnedTensor dequantized_codes(const QuantizedMatrix& q, DType dtype, ThreadPool& threads);

// As the functions of WeightFormat, for these encodings.
void validate_quantized(const EncodedWeight& e, ThreadPool& threads);
// The values, with a bit for each element unless they are dense, and the scales.
int64_t quantized_formula_bytes(const EncodedWeight& header);
int64_t expected_quantized_bytes(const EncodedWeight& header);
// Of a slice that encode_quantized_again() makes.
EncodedSize expected_quantized_size(const EncodedWeight& e, const Slice& slice);
std::optional<EncodedWeight> slice_quantized(const EncodedWeight& e, Axis axis, Range range);
std::optional<EncodedWeight> concat_rows_quantized(std::span<const EncodedWeight* const> parts);

// Whether all parts, of any format, are such encodings in one format, and of one type with one
// group.
bool are_quantized_alike(std::span<const EncodedWeight* const> parts);
// The columns that share a scale in a slice of i4 from this column on: as many as in the whole, or
// fewer where that begins in the middle of a group, so that no scale changes. Throws Error for a
// column that is no multiple of 32.
int64_t group_from(int64_t group, int64_t column);
// Of such parts one below the other a slice: the same codes and scales, in groups of group_from().
EncodedWeight encode_quantized_again(std::span<const EncodedWeight* const> parts,
                                     const Slice& slice, ThreadPool& threads);

}  // namespace sparsellm::tca_bme
