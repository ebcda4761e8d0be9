#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/tca_bme/quantized/quantized_order.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "sparse/tca_bme/v1/paper_layout.h"

namespace sparsellm::tca_bme {
namespace {

constexpr int64_t kQuantizedRecordsPerRange = 8;
constexpr int32_t kQuantizedColumns = QuantizedLayout::kColumns;
constexpr int32_t kQuantizedElements = kRecordRows * kQuantizedColumns;

// The part of a matrix that a record has.
struct RecordWindow {
  RecordWindow(const QuantizedMatrix& q, const RecordGrid& grid, int64_t r)
      : row(grid.row_block(r) * kRecordRows),
        column(grid.column(r) * kQuantizedColumns),
        rows(std::min<int64_t>(kRecordRows, q.rows - row)),
        columns(std::min<int64_t>(kQuantizedColumns, q.columns - column)) {}

  int64_t row;
  int64_t column;
  int64_t rows;
  int64_t columns;
};

std::span<const int8_t> codes_in(const QuantizedMatrix& q, const RecordWindow& window,
                                 int64_t row) {
  return std::span(q.codes).subspan(
      static_cast<size_t>((window.row + row) * q.columns + window.column),
      static_cast<size_t>(window.columns));
}

// Without the sign of a zero.
int8_t stored_code(ValueType type, int8_t code) {
  return type == ValueType::f8 && (code & 0x7f) == 0 ? int8_t{0} : code;
}

int32_t count_codes(const QuantizedMatrix& q, const RecordWindow& window) {
  const int mask = q.type == ValueType::f8 ? 0x7f : 0xff;
  int32_t nonzeros = 0;
  for (int64_t row = 0; row < window.rows; ++row) {
    for (const int8_t code : codes_in(q, window, row)) {
      nonzeros += (code & mask) != 0 ? 1 : 0;
    }
  }
  return nonzeros;
}

// What a record holds; of the values there is room for one that is stored but does not count.
struct QuantizedContent {
  std::array<int8_t, kQuantizedElements> elements;  // [64, 128], 0 outside of the matrix
  std::array<uint16_t, QuantizedLayout::kChunks * kMaskWords> masks;
  std::array<uint16_t, QuantizedLayout::kChunks * 16> offsets;
  std::array<uint16_t, 4 * kRecordRows> scales;  // of i4
  std::array<int8_t, kQuantizedElements + 1> values;
};

void take_elements(const QuantizedMatrix& q, const RecordWindow& window,
                   QuantizedContent& content) {
  if (window.rows < kRecordRows || window.columns < kQuantizedColumns) {
    content.elements.fill(0);
  }
  for (int64_t row = 0; row < window.rows; ++row) {
    const std::span<const int8_t> codes = codes_in(q, window, row);
    std::ranges::transform(codes, content.elements.begin() + row * kQuantizedColumns,
                           [&](int8_t code) { return stored_code(q.type, code); });
  }
}

void take_scales(const QuantizedMatrix& q, const RecordWindow& window,
                 const QuantizedLayout& layout, QuantizedContent& content) {
  content.scales.fill(to_half(1.0f).bits);
  const int64_t groups = q.groups();
  for (int64_t group = 0; group * layout.group < window.columns; ++group) {
    const int64_t first = window.row * groups + window.column / layout.group + group;
    for (int64_t row = 0; row < window.rows; ++row) {
      content.scales[static_cast<size_t>(
          quantized_scale_index(static_cast<int32_t>(group), static_cast<int32_t>(row)))] =
          to_half(q.scales[static_cast<size_t>(first + row * groups)]).bits;
    }
  }
}

// Returns the number of values. Stores a value wherever the next one that counts goes, so that no
// branch depends on the bits.
int32_t fill_quantized(const QuantizedLayout& layout, QuantizedContent& content) {
  const ChunkOrder& order = chunk_order(layout);
  const size_t run_elements = order.size() / static_cast<size_t>(layout.offsets);
  content.masks.fill(0);
  uint32_t count = 0;
  const auto first = static_cast<uint32_t>(layout.header_bytes() * (layout.nibbles() ? 2 : 1));
  for (int32_t chunk = 0; chunk < QuantizedLayout::kChunks; ++chunk) {
    const int8_t* const elements = content.elements.data() +
                                   chunk % 2 * QuantizedLayout::kChunkSide * kQuantizedColumns +
                                   chunk / 2 * QuantizedLayout::kChunkSide;
    uint16_t* const masks = content.masks.data() + chunk * kMaskWords;
    const ElementPlace* place = order.data();
    for (int32_t run = 0; run < layout.offsets; ++run) {
      content.offsets[static_cast<size_t>(quantized_offset_of_run(layout, chunk, run))] =
          static_cast<uint16_t>(first + count);
      for (const ElementPlace* const end = place + run_elements; place != end; ++place) {
        const int8_t code = elements[place->row * kQuantizedColumns + place->column];
        const uint32_t bit = code != 0 ? 1 : 0;
        content.values[count] = code;
        masks[place->word] |= static_cast<uint16_t>(bit << place->bit);
        count += bit;
      }
    }
  }
  return static_cast<int32_t>(count);
}

void pack_nibbles(std::span<const int8_t> codes, std::byte* nibbles) {
  for (size_t i = 0; i < codes.size(); i += 2) {
    const int low = codes[i] + 8;
    const int high = i + 1 < codes.size() ? codes[i + 1] + 8 : 0;
    nibbles[i / 2] = static_cast<std::byte>(low | high << 4);
  }
}

void write_quantized(const QuantizedLayout& layout, const QuantizedContent& content, int32_t values,
                     std::span<std::byte> record) {
  std::byte* next = record.data();
  const auto append = [&](const void* from, int32_t bytes) {
    std::memcpy(next, from, static_cast<size_t>(bytes));
    next += bytes;
  };
  append(content.masks.data(), layout.mask_bytes());
  append(content.offsets.data(), layout.offset_bytes());
  append(content.scales.data(), layout.scale_bytes());
  if (layout.nibbles()) {
    pack_nibbles(std::span(content.values).first(static_cast<size_t>(values)), next);
    next += (values + 1) / 2;
  } else {
    append(content.values.data(), values);
  }
  std::fill(next, record.data() + record.size(), std::byte{0});
}

// The values of a dense record, which are zeros before.
void write_dense(const QuantizedLayout& layout, const QuantizedContent& content,
                 std::span<std::byte> values) {
  for (int32_t row = 0; row < kRecordRows; ++row) {
    for (int32_t column = 0; column < kQuantizedColumns; column += 4) {
      const int8_t* const four = content.elements.data() + row * kQuantizedColumns + column;
      std::byte* const to = values.data() + dense_values_at(layout, row, column);
      if (!layout.nibbles()) {
        std::memcpy(to, four, 4);
        continue;
      }
      const int shift = is_high_nibble(column) ? 4 : 0;
      for (int32_t k = 0; k < 4; ++k) {
        to[k] |= static_cast<std::byte>((four[k] + 8) << shift);
      }
    }
  }
}

void write_dense_record(const QuantizedLayout& layout, const QuantizedContent& content,
                        std::span<std::byte> record) {
  std::ranges::fill(record, std::byte{0});
  std::memcpy(record.data(), content.scales.data(), static_cast<size_t>(layout.scale_bytes()));
  write_dense(layout, content, record.subspan(static_cast<size_t>(layout.header_bytes())));
}

std::vector<int32_t> count_record_bits(const QuantizedMatrix& q, const RecordGrid& grid,
                                       ThreadPool& threads) {
  std::vector<int32_t> bits(static_cast<size_t>(grid.count()));
  threads.parallel_for(grid.count(), kQuantizedRecordsPerRange, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      bits[static_cast<size_t>(r)] = count_codes(q, RecordWindow(q, grid, r));
    }
  });
  return bits;
}

EncodedPart row_scales_part(const QuantizedMatrix& q) {
  NewPart<float> made = new_part<float>(kScales, DType::f32, q.rows);
  std::ranges::copy(q.scales, made.values.begin());
  return std::move(made.part);
}

}  // namespace

EncodedWeight encode_quantized(const QuantizedMatrix& q, std::string_view format, DType dtype,
                               ThreadPool& threads) {
  require(dtype == DType::f16 || dtype == DType::bf16, "a {} weight of {} values", format,
          name_of(dtype));
  const std::optional<ValueType> dense = dense_values(format);
  require(!dense || *dense == q.type, "a {} weight of codes of {}", format, name_of(q.type));
  require_valid(q);
  const RecordGrid grid = quantized_grid(q.rows, q.columns);
  const std::vector<int32_t> bits = count_record_bits(q, grid, threads);
  const int64_t nonzeros = std::accumulate(bits.begin(), bits.end(), int64_t{0});
  const QuantizedLayout layout =
      quantized_layout_in(format, values_of(q.type), q.group, q.rows * q.columns, nonzeros);
  NewRecords made(quantized_layout_part(layout), grid.count());
  std::ranges::copy(quantized_starts(layout, bits), made.starts.values.begin());
  made.allocate_records();
  threads.parallel_for(grid.count(), kQuantizedRecordsPerRange, [&](int64_t begin, int64_t end) {
    QuantizedContent content;
    for (int64_t r = begin; r < end; ++r) {
      const RecordWindow window(q, grid, r);
      take_elements(q, window, content);
      if (layout.nibbles()) {
        take_scales(q, window, layout, content);
      }
      const size_t first = size_t{made.starts.values[static_cast<size_t>(r)]} * kRecordAlignment;
      const size_t last = size_t{made.starts.values[static_cast<size_t>(r + 1)]} * kRecordAlignment;
      const std::span<std::byte> record = made.records.values.subspan(first, last - first);
      if (layout.dense()) {
        write_dense_record(layout, content, record);
      } else {
        const int32_t values = fill_quantized(layout, content);
        write_quantized(layout, content, values, record);
      }
    }
  });
  EncodedWeight e = made.finish({.format = std::string(format),
                                 .version = dense ? kDenseNarrowVersion : kQuantizedVersion,
                                 .dtype = dtype,
                                 .rows = q.rows,
                                 .columns = q.columns,
                                 .nonzeros = nonzeros,
                                 .parts = {}});
  if (!layout.nibbles()) {
    e.parts.push_back(row_scales_part(q));
  }
  return e;
}

EncodedWeight encode_quantized(const QuantizedMatrix& q, DType dtype, ThreadPool& threads) {
  return encode_quantized(q, kName, dtype, threads);
}

}  // namespace sparsellm::tca_bme
