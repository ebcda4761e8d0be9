#include <algorithm>
#include <array>
#include <cstring>

#include "sparse/tca_bme/quantized/quantized_order.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"

namespace sparsellm::tca_bme {
namespace {

constexpr int32_t kDecodedColumns = QuantizedLayout::kColumns;
constexpr int32_t kDecodedElements = kRecordRows * kDecodedColumns;

// A record, unpacked. After the last value there is room for one that is read but does not count.
struct UnpackedRecord {
  std::array<uint16_t, QuantizedLayout::kChunks * kMaskWords> masks;
  std::array<int8_t, kDecodedElements + kRecordAlignment + 1> values;
  std::array<int8_t, kDecodedElements> elements;  // [64, 128]
};

void unpack_record(const QuantizedLayout& layout, std::span<const std::byte> record,
                   UnpackedRecord& unpacked) {
  std::memcpy(unpacked.masks.data(), record.data(), static_cast<size_t>(layout.mask_bytes()));
  const auto values = record.subspan(static_cast<size_t>(layout.header_bytes()));
  if (layout.nibbles()) {
    const size_t count = std::min(values.size(), unpacked.values.size() / 2);
    for (size_t i = 0; i < count; ++i) {
      const int both = std::to_integer<int>(values[i]);
      unpacked.values[2 * i] = static_cast<int8_t>((both & 15) - 8);
      unpacked.values[2 * i + 1] = static_cast<int8_t>((both >> 4) - 8);
    }
  } else {
    std::memcpy(unpacked.values.data(), values.data(), values.size());
  }
}

// Of a dense record the values, to elements in rows of kDecodedColumns.
void unpack_dense(const QuantizedLayout& layout, std::span<const std::byte> values,
                  std::span<int8_t> elements) {
  for (int32_t row = 0; row < kRecordRows; ++row) {
    for (int32_t column = 0; column < kDecodedColumns; column += 4) {
      const std::byte* const four = values.data() + dense_values_at(layout, row, column);
      int8_t* const to = elements.data() + row * kDecodedColumns + column;
      if (!layout.nibbles()) {
        std::memcpy(to, four, 4);
        continue;
      }
      const int shift = is_high_nibble(column) ? 4 : 0;
      for (int32_t k = 0; k < 4; ++k) {
        to[k] = static_cast<int8_t>((std::to_integer<int>(four[k]) >> shift & 15) - 8);
      }
    }
  }
}

void place_elements(const QuantizedLayout& layout, UnpackedRecord& unpacked) {
  const ChunkOrder& order = chunk_order(layout);
  size_t count = 0;
  for (int32_t chunk = 0; chunk < QuantizedLayout::kChunks; ++chunk) {
    int8_t* const elements = unpacked.elements.data() +
                             chunk % 2 * QuantizedLayout::kChunkSide * kDecodedColumns +
                             chunk / 2 * QuantizedLayout::kChunkSide;
    const uint16_t* const masks = unpacked.masks.data() + chunk * kMaskWords;
    for (const ElementPlace& place : order) {
      const int bit = masks[place.word] >> place.bit & 1;
      elements[place.row * kDecodedColumns + place.column] =
          static_cast<int8_t>(unpacked.values[count] & -bit);
      count += static_cast<size_t>(bit);
    }
  }
}

// Those of the wanted rows that are in a block of 64; the first wanted one is row 0 of q.
void decode_block(const QuantizedParts& parts, int64_t block, Range wanted, QuantizedMatrix& q) {
  const int64_t block_row = block * kRecordRows;
  const int64_t begin = std::max(wanted.begin, block_row);
  const int64_t end = std::min(wanted.begin + wanted.count, block_row + kRecordRows);
  const QuantizedLayout& layout = parts.layout;
  const int64_t groups = q.groups();
  UnpackedRecord unpacked;
  for (int64_t j = 0; j < parts.grid.columns; ++j) {
    const std::span<const std::byte> record = parts.record(parts.grid.index(block, j));
    if (layout.dense()) {
      unpack_dense(layout, record.subspan(static_cast<size_t>(layout.header_bytes())),
                   unpacked.elements);
    } else {
      unpack_record(layout, record, unpacked);
      place_elements(layout, unpacked);
    }
    const int64_t column = j * kDecodedColumns;
    const int64_t columns = std::min<int64_t>(kDecodedColumns, q.columns - column);
    for (int64_t row = begin; row < end; ++row) {
      std::copy_n(unpacked.elements.begin() + (row - block_row) * kDecodedColumns, columns,
                  q.codes.begin() + (row - wanted.begin) * q.columns + column);
    }
    const std::byte* const scales = record.data() + layout.mask_bytes() + layout.offset_bytes();
    for (int64_t group = 0; group < layout.groups() && group * layout.group < columns; ++group) {
      for (int64_t row = begin; row < end; ++row) {
        const auto at = scales + quantized_scale_index(static_cast<int32_t>(group),
                                                       static_cast<int32_t>(row - block_row)) *
                                     2;
        q.scales[static_cast<size_t>((row - wanted.begin) * groups + column / layout.group +
                                     group)] = to_float(Half{load_from<uint16_t>(at)});
      }
    }
  }
}

}  // namespace

QuantizedMatrix quantized_rows(const QuantizedParts& parts, Range rows, ThreadPool& threads) {
  QuantizedMatrix q{.type = type_of(parts.layout.values),
                    .rows = rows.count,
                    .columns = parts.columns,
                    .group = parts.layout.nibbles() ? parts.layout.group : parts.columns,
                    .codes = {},
                    .scales = {}};
  q.codes.resize(static_cast<size_t>(q.rows * q.columns));
  q.scales.assign(static_cast<size_t>(q.rows * q.groups()), 1.0f);
  if (!parts.layout.nibbles()) {
    std::ranges::copy(
        parts.scales.subspan(static_cast<size_t>(rows.begin), static_cast<size_t>(rows.count)),
        q.scales.begin());
  }
  if (parts.grid.columns == 0) {
    return q;
  }
  const int64_t first = rows.begin / kRecordRows;
  const int64_t blocks = ceil_div(rows.begin + rows.count, kRecordRows) - first;
  threads.parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = first + begin; block < first + end; ++block) {
      decode_block(parts, block, rows, q);
    }
  });
  return q;
}

QuantizedMatrix quantized_of(const EncodedWeight& e, ThreadPool& threads) {
  return quantized_rows(QuantizedParts(e), {.begin = 0, .count = e.rows}, threads);
}

OwnedTensor dequantized_codes(const QuantizedMatrix& q, DType dtype, ThreadPool& threads) {
  const int64_t count = int64_t{1} << bits_of(q.type);
  QuantizedMatrix all{.type = q.type,
                      .rows = q.rows * q.groups(),
                      .columns = count,
                      .group = q.type == ValueType::i4 ? q.group : count,
                      .codes = {},
                      .scales = q.scales};
  for (int64_t row = 0; row < all.rows; ++row) {
    for (int64_t bits = 0; bits < count; ++bits) {
      const int64_t code = bits < count / 2 ? bits : bits - count;
      const bool is_nan = q.type == ValueType::f8 && (code & 0x7f) == 0x7f;
      all.codes.push_back(is_nan ? int8_t{0} : static_cast<int8_t>(code));
    }
  }
  return dequantize(all, dtype, threads);
}

}  // namespace sparsellm::tca_bme
