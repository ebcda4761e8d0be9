#include <algorithm>
#include <atomic>
#include <bit>

#include "kernels/base/error.h"
#include "sparse/tca_bme/record_parts.h"

namespace sparsellm::tca_bme {
namespace {

// Of a record, in messages.
struct Place {
  int64_t record = 0;
  int64_t rows = 0;  // from the record's first to the end of the matrix
  int64_t columns = 0;
};

// The bits of value_bits() whose elements, or the first elements of whose pairs, are in a matrix
// that goes on for so many rows and columns from the first element of these i, par, t.
uint32_t bits_inside(bool pairs, int64_t rows, int64_t columns) {
  uint32_t inside = 0;
  const int elements = pairs ? 1 : 2;  // of a bit's row in 8 columns
  for (int bit = 0; bit < 16 * elements; ++bit) {
    const int64_t row = bit / elements % kLaneRows;
    const int64_t column = bit / (elements * kLaneRows) * 8 + bit % elements;
    inside |= static_cast<uint32_t>(row < rows && column < columns ? 1 : 0) << bit;
  }
  return inside;
}

// The elements outside of the matrix are those of bits, but for the second of the pair at the end
// of a row of an odd number of columns. `values`: those of `bits`, which have first columns of the
// pairs from `column` on.
void check_last_pairs(const Place& place, uint32_t bits, int64_t column, const std::byte* values) {
  for (; bits != 0; bits &= bits - 1, values += 4) {
    const int64_t second = column + std::countr_zero(bits) / kLaneRows * 8 + 1;
    require(second < place.columns || load_from<uint16_t>(values + 2) == 0,
            "tca_bme: record {} has a value outside of the matrix", place.record);
  }
}

// Bits and offsets; the number of bits is that of the values.
void check_masks(const RecordLayout& layout, const Place& place, const std::byte* record) {
  const bool whole = place.rows >= kRecordRows && place.columns >= layout.columns();
  int32_t offset = layout.header_bytes();
  for (int32_t chunk = 0; chunk < layout.chunks; ++chunk) {
    for (int32_t i = 0; i < kRowTiles; ++i) {
      for (int32_t par = 0; par < kHalves; ++par) {
        for (int32_t t = 0; t < kLanesInRow; ++t) {
          const uint32_t bits = value_bits(layout, record, chunk, i, par, t);
          const int32_t stored = load_from<uint16_t>(record + layout.mask_bytes() +
                                                     offset_index(chunk, i, par, t) * 2);
          require(stored == offset, "tca_bme: offset {} of record {} is {}, not {}",
                  offset_index(chunk, i, par, t), place.record, stored, offset);
          if (!whole) {
            const int64_t column = chunk * kChunkColumns + kHalves * t;
            require((bits & ~bits_inside(layout.pairs(), place.rows - 16 * i - 8 * par,
                                         place.columns - column)) == 0,
                    "tca_bme: chunk {} of record {} has bits outside of the matrix", chunk,
                    place.record);
            if (layout.pairs()) {
              check_last_pairs(place, bits, column, record + offset);
            }
          }
          offset += std::popcount(bits) * layout.value_bytes();
        }
      }
    }
  }
}

// Returns the number of nonzeros.
int64_t check_values(const RecordLayout& layout, const Place& place, const std::byte* values,
                     int32_t bits) {
  int64_t zeros = 0;
  int64_t wrong_zeros = 0;
  for (int32_t bit = 0; bit < bits; ++bit) {
    if (layout.pairs()) {
      const auto pair = load_from<uint32_t>(values + bit * 4);
      const int first_zero = (pair & 0x7fff) == 0 ? 1 : 0;
      const int second_zero = (pair & 0x7fff0000) == 0 ? 1 : 0;
      const int negative_zeros = ((pair & 0xffff) == 0x8000) + ((pair >> 16) == 0x8000);
      zeros += first_zero + second_zero;
      wrong_zeros += (first_zero & second_zero) + negative_zeros;
    } else {
      wrong_zeros += (load_from<uint16_t>(values + bit * 2) & 0x7fff) == 0 ? 1 : 0;
    }
  }
  require(wrong_zeros == 0, "tca_bme: {} {} of record {} are 0", wrong_zeros,
          layout.pairs() ? "pairs, or negative values," : "nonzeros", place.record);
  return int64_t{bits} * (layout.value_bytes() / 2) - zeros;
}

// Returns the number of nonzeros.
int64_t check_record(const RecordLayout& layout, const Place& place,
                     std::span<const std::byte> record) {
  require(std::ssize(record) >= layout.header_bytes(),
          "tca_bme: record {} has {} bytes, fewer than masks and offsets take", place.record,
          record.size());
  int32_t bits = 0;
  for (int32_t byte = 0; byte < layout.mask_bytes(); byte += 8) {
    bits += std::popcount(load_from<uint64_t>(record.data() + byte));
  }
  require(std::ssize(record) == layout.record_bytes(bits),
          "tca_bme: record {} has {} bytes, not the {} of {} bits", place.record, record.size(),
          layout.record_bytes(bits), bits);
  check_masks(layout, place, record.data());
  const auto padding =
      record.subspan(static_cast<size_t>(layout.header_bytes() + bits * layout.value_bytes()));
  require(std::ranges::all_of(padding, [](std::byte byte) { return byte == std::byte{0}; }),
          "tca_bme: the padding of record {} is not 0", place.record);
  return check_values(layout, place, record.data() + layout.header_bytes(), bits);
}

}  // namespace

void validate_records(const EncodedWeight& e, ThreadPool& threads) {
  require(e.dtype == DType::f16 || e.dtype == DType::bf16, "a tca_bme weight of {} values",
          name_of(e.dtype));
  const RecordLayout layout = read_record_layout(e);
  const RecordGrid grid = record_grid(e.rows, e.columns, layout);
  require_parts(e, {{kLayout, PartType::u32, e.part(kLayout).count()},
                    {kStarts, PartType::u32, grid.count() + 1},
                    {kRecords, PartType::u8, e.part(kRecords).count()}});
  const RecordParts parts(e);
  require(parts.starts[0] == 0, "tca_bme: the first start is {}, not 0", parts.starts[0]);

  for (int64_t r = 0; r < grid.count(); ++r) {
    const int64_t begin = parts.starts[static_cast<size_t>(r)];
    const int64_t end = parts.starts[static_cast<size_t>(r + 1)];
    require(begin <= end && end <= std::ssize(parts.records) / kRecordAlignment,
            "tca_bme: record {} goes from start {} to {} of {} bytes", r, begin, end,
            parts.records.size());
  }
  require(std::ssize(parts.records) == int64_t{parts.starts.back()} * kRecordAlignment,
          "tca_bme: {} bytes of records, but the last start is {}", parts.records.size(),
          parts.starts.back());

  std::atomic<int64_t> nonzeros = 0;
  constexpr int64_t kRecordsPerRange = 16;
  threads.parallel_for(grid.count(), kRecordsPerRange, [&](int64_t begin, int64_t end) {
    int64_t some = 0;
    for (int64_t r = begin; r < end; ++r) {
      some += check_record(layout,
                           {.record = r,
                            .rows = e.rows - grid.row_block(r) * kRecordRows,
                            .columns = e.columns - grid.column(r) * layout.columns()},
                           parts.record(r));
    }
    nonzeros += some;
  });
  require(nonzeros == e.nonzeros, "tca_bme: {} nonzeros, but {} are stored", e.nonzeros,
          nonzeros.load());
}

}  // namespace sparsellm::tca_bme
