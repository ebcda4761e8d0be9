#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "kernels/base/error.h"
#include "sparse/tca_bme/quantized/code_counts.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"

namespace sparsellm::tca_bme {
namespace {

// A record, in messages.
struct QuantizedPlace {
  std::string_view format;
  int64_t record = 0;
  int64_t rows = 0;  // from the record's first to the end of the matrix
  int64_t columns = 0;
};

uint32_t load_mask(const std::byte* record, int32_t word) {
  return load_from<uint16_t>(record + word * 2);
}

// That offsets are those of the bits.
void check_quantized_offsets(const QuantizedLayout& layout, const QuantizedPlace& place,
                             const std::byte* record) {
  int32_t expected = layout.header_bytes() * (layout.nibbles() ? 2 : 1);
  const std::byte* const offsets = record + layout.mask_bytes();
  for (int32_t chunk = 0; chunk < QuantizedLayout::kChunks; ++chunk) {
    for (int32_t run = 0; run < layout.offsets; ++run) {
      const int32_t j = run / 8;
      const int32_t q = run / 4 % 2;
      const int32_t t = run % 4;
      const int32_t index = quantized_offset_index(layout, chunk, j, q, t);
      const int32_t stored = load_from<uint16_t>(offsets + index * 2);
      require(stored == expected, "{}: offset {} of record {} is {}, not {}", place.format, index,
              place.record, stored, expected);
      const uint32_t of_run = layout.offsets == 16 ? 0x3333u << (2 * j) : 0xffffu;
      for (int32_t g = 0; g < kLaneRows; ++g) {
        expected += std::popcount(load_mask(record, quantized_mask_word(chunk, g, t, q)) & of_run);
      }
    }
  }
}

// The bits of a word whose elements are in a matrix that goes on for this many rows and columns
// from the first element of the word.
uint32_t quantized_bits_inside(int64_t rows, int64_t columns) {
  uint32_t inside = 0;
  for (int bit = 0; bit < 16; ++bit) {
    const int64_t row = bit / 2 % 2 * 16;
    const int64_t column = bit % 2 * 16 + bit / 4;
    inside |= static_cast<uint32_t>(row < rows && column < columns ? 1 : 0) << bit;
  }
  return inside;
}

// That a record at the end of the rows or columns has nothing outside of the matrix.
void check_quantized_edges(const QuantizedPlace& place, const std::byte* record) {
  for (int32_t chunk = 0; chunk < QuantizedLayout::kChunks; ++chunk) {
    const int64_t rows = place.rows - chunk % 2 * QuantizedLayout::kChunkSide;
    const int64_t columns = place.columns - chunk / 2 * QuantizedLayout::kChunkSide;
    for (int32_t g = 0; g < kLaneRows; ++g) {
      for (int32_t t = 0; t < kLanesInRow; ++t) {
        for (int32_t q = 0; q < kHalves; ++q) {
          const uint32_t bits = load_mask(record, quantized_mask_word(chunk, g, t, q));
          require((bits & ~quantized_bits_inside(rows - 8 * q - g, columns - 4 * t)) == 0,
                  "{}: chunk {} of record {} has bits outside of the matrix", place.format, chunk,
                  place.record);
        }
      }
    }
  }
}

// Those of i4: that they are finite and positive, and 1 outside of the matrix.
void check_group_scales(const QuantizedLayout& layout, const QuantizedPlace& place,
                        const std::byte* scales) {
  constexpr uint16_t kOne = 0x3c00;
  constexpr uint16_t kInfinity = 0x7c00;
  for (int32_t group = 0; group < layout.groups(); ++group) {
    for (int32_t row = 0; row < kRecordRows; ++row) {
      const auto scale = load_from<uint16_t>(scales + quantized_scale_index(group, row) * 2);
      const bool inside = row < place.rows && group * layout.group < place.columns;
      require(inside ? scale > 0 && scale < kInfinity : scale == kOne,
              "{}: the scale of group {} of row {} of record {} is {}{}", place.format, group, row,
              place.record, to_float(Half{scale}), inside ? "" : ", but outside of the matrix");
    }
  }
}

// `bytes`: as many as have values.
void check_codes(const QuantizedLayout& layout, const QuantizedPlace& place,
                 std::span<const std::byte> bytes, int32_t count) {
  int32_t zeros = 0;
  switch (layout.values) {
    case QuantizedLayout::Values::i8:
      zeros = count_bytes(bytes, std::byte{0xff}, std::byte{0});
      break;
    case QuantizedLayout::Values::f8: {
      const int32_t nans = count_bytes(bytes, std::byte{0x7f}, std::byte{0x7f});
      require(nans == 0, "{}: {} values of record {} are NaN", place.format, nans, place.record);
      zeros = count_bytes(bytes, std::byte{0x7f}, std::byte{0});
      break;
    }
    case QuantizedLayout::Values::i4:
      zeros = count_bytes(bytes, std::byte{0x0f}, std::byte{0x08}) +
              count_bytes(bytes, std::byte{0xf0}, std::byte{0x80});
      require(count % 2 == 0 || (bytes.back() & std::byte{0xf0}) == std::byte{0},
              "{}: the padding of record {} is not 0", place.format, place.record);
      break;
  }
  require(zeros == 0, "{}: {} nonzeros of record {} are 0", place.format, zeros, place.record);
}

// Of a record that has its masks, offsets and scales at least. Returns the number of nonzeros.
int64_t check_quantized_record(const QuantizedLayout& layout, const QuantizedPlace& place,
                               std::span<const std::byte> record) {
  int32_t bits = 0;
  for (int32_t byte = 0; byte < layout.mask_bytes(); byte += 8) {
    bits += std::popcount(load_from<uint64_t>(record.data() + byte));
  }
  require(std::ssize(record) == layout.record_bytes(bits),
          "{}: record {} has {} bytes, not the {} of {} bits", place.format, place.record,
          record.size(), layout.record_bytes(bits), bits);
  check_quantized_offsets(layout, place, record.data());
  if (place.rows < kRecordRows || place.columns < QuantizedLayout::kColumns) {
    check_quantized_edges(place, record.data());
  }
  check_group_scales(layout, place, record.data() + layout.mask_bytes() + layout.offset_bytes());
  const int32_t value_bytes = layout.nibbles() ? (bits + 1) / 2 : bits;
  check_padding(place.record, record, layout.header_bytes() + value_bytes);
  check_codes(
      layout, place,
      record.subspan(static_cast<size_t>(layout.header_bytes()), static_cast<size_t>(value_bytes)),
      bits);
  return bits;
}

// That a dense record at the end of the rows or columns has zeros outside of the matrix.
void check_dense_edges(const QuantizedLayout& layout, const QuantizedPlace& place,
                       std::span<const std::byte> values) {
  for (int32_t row = 0; row < kRecordRows; ++row) {
    const int64_t first_outside =
        row < place.rows ? std::min<int64_t>(place.columns, QuantizedLayout::kColumns) : int64_t{0};
    for (auto column = static_cast<int32_t>(first_outside); column < QuantizedLayout::kColumns;
         ++column) {
      const int32_t at = dense_values_at(layout, row, column / 4 * 4) + column % 4;
      const int both = std::to_integer<int>(values[static_cast<size_t>(at)]);
      const int code = !layout.nibbles()        ? both
                       : is_high_nibble(column) ? (both >> 4) - 8
                                                : (both & 15) - 8;
      require(code == 0, "{}: record {} has values outside of the matrix", place.format,
              place.record);
    }
  }
}

// Of a record of the size of all. Returns the number of nonzeros.
int64_t check_dense_record(const QuantizedLayout& layout, const QuantizedPlace& place,
                           std::span<const std::byte> record) {
  const auto values = record.subspan(static_cast<size_t>(layout.header_bytes()));
  if (place.rows < kRecordRows || place.columns < QuantizedLayout::kColumns) {
    check_dense_edges(layout, place, values);
  }
  check_group_scales(layout, place, record.data());
  return count_dense_nonzeros(layout, values);
}

}  // namespace

QuantizedChecker::QuantizedChecker(const EncodedWeight& e)
    : format_(e.format),
      rows_(e.rows),
      columns_(e.columns),
      layout_(read_quantized_layout(e)),
      grid_(quantized_grid(e.rows, e.columns)) {
  require(e.dtype == DType::f16 || e.dtype == DType::bf16, "a {} weight of {} values", e.format,
          name_of(e.dtype));
  const ExpectedPart layout{kLayout, DType::u32, kQuantizedLayoutWords};
  const ExpectedPart starts{kStarts, DType::u32, grid_.count() + 1};
  const ExpectedPart records{kRecords, DType::u8, e.part(kRecords).count()};
  if (layout_.nibbles()) {
    require_parts(e, {layout, starts, records});
  } else {
    require_parts(e, {layout, starts, records, {kScales, DType::f32, e.rows}});
    const auto scales = e.part(kScales).values<float>();
    scales_.assign(scales.begin(), scales.end());
  }
  for (size_t row = 0; row < scales_.size(); ++row) {
    require(std::isfinite(scales_[row]) && scales_[row] > 0.0f, "{}: the scale of row {} is {}",
            format_, row, scales_[row]);
  }
  const int32_t most = layout_.max_record_bytes();
  starts_ = checked_starts(
      e, grid_.count(), {.least = layout_.dense() ? most : layout_.header_bytes(), .most = most});
}

int64_t QuantizedChecker::check(int64_t first, int64_t count,
                                std::span<const std::byte> records) const {
  const auto check_one = layout_.dense() ? check_dense_record : check_quantized_record;
  return check_records(starts_, first, count, records, [&](int64_t r, const auto& record) {
    return check_one(layout_,
                     {.format = format_,
                      .record = r,
                      .rows = rows_ - grid_.row_block(r) * kRecordRows,
                      .columns = columns_ - grid_.column(r) * QuantizedLayout::kColumns},
                     record);
  });
}

std::optional<EncodedPart> QuantizedChecker::of_rows(std::string_view name, Range rows) const {
  if (name != kScales || layout_.nibbles()) {
    return std::nullopt;
  }
  NewPart<float> made = new_part<float>(kScales, DType::f32, rows.count);
  std::copy_n(scales_.begin() + rows.begin, rows.count, made.values.begin());
  return std::move(made.part);
}

void validate_quantized(const EncodedWeight& e, ThreadPool& threads) {
  const QuantizedChecker checker(e);
  check_all_records(e, QuantizedParts(e), checker, threads);
}

}  // namespace sparsellm::tca_bme
