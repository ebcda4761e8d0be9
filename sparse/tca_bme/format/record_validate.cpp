#include <algorithm>
#include <array>
#include <bit>

#include "kernels/base/error.h"
#include "sparse/tca_bme/format/record_parts.h"

namespace sparsellm::tca_bme {
namespace {

// Of a record, in messages.
struct Place {
  int64_t record = 0;
  int64_t rows = 0;  // from the record's first to the end of the matrix
  int64_t columns = 0;
};

// The bits of value_bits() whose elements, or the first elements of whose pairs, are in a matrix
// that goes on for this many rows and columns from the first element of these i, par, t.
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

// The low ones of every two.
constexpr uint64_t kLowBits = 0x5555'5555'5555'5555;
constexpr uint64_t kLowPairs = 0x3333'3333'3333'3333;
constexpr uint64_t kLowNibbles = 0x0f0f'0f0f'0f0f'0f0f;

// How many bits are set for each i of the words of four neighbouring columns 2 t + par, over all g:
// counts[i] has a number of 16 bits for each column, its low byte for the low bytes of the words
// and its high byte for the high ones.
std::array<uint64_t, kRowTiles> count_bits(const std::byte* words) {
  std::array<uint64_t, kRowTiles> counts{};
  constexpr int kRows = 4;  // at most 2 bits each: no sum is above 15
  for (int first = 0; first < kLaneRows; first += kRows) {
    uint64_t even = 0;
    uint64_t odd = 0;
    for (int g = first; g < first + kRows; ++g) {
      const auto four = load_from<uint64_t>(words + g * 16);
      const uint64_t pairs = four - (four >> 1 & kLowBits);  // numbers of 2 bits
      even += pairs & kLowPairs;
      odd += pairs >> 2 & kLowPairs;
    }
    counts[0] += even & kLowNibbles;
    counts[1] += odd & kLowNibbles;
    counts[2] += even >> 4 & kLowNibbles;
    counts[3] += odd >> 4 & kLowNibbles;
  }
  return counts;
}

[[noreturn]] void fail_offset(const Place& place, int32_t index, int32_t stored, int32_t expected) {
  fail("tca_bme: offset {} of record {} is {}, not {}", index, place.record, stored, expected);
}

// That offsets are those of the bits.
void check_offsets(const RecordLayout& layout, const Place& place, const std::byte* record) {
  const int shift = std::countr_zero(static_cast<uint32_t>(layout.value_bytes()));
  int32_t offset = layout.header_bytes();
  for (int32_t chunk = 0; chunk < layout.chunks; ++chunk) {
    const std::byte* const words = record + mask_word(layout, chunk, 0, 0, 0) * 2;
    const std::array<std::array<uint64_t, kRowTiles>, 2> counts = {count_bits(words),
                                                                   count_bits(words + 8)};
    const std::byte* const offsets = record + layout.mask_bytes() + chunk * kChunkOffsets * 2;
    for (int32_t i = 0; i < kRowTiles; ++i) {
      for (int32_t par = 0; par < kHalves; ++par) {
        for (int32_t t = 0; t < kLanesInRow; ++t) {
          const int32_t column = 2 * t + par;
          const auto both = static_cast<uint32_t>(counts[column / 4][i] >> (column % 4 * 16));
          const uint32_t low = both & 0xff;
          const uint32_t high = both >> 8 & 0xff;
          const uint32_t bits = !layout.pairs() ? low + high : chunk % 2 == 0 ? low : high;
          const int32_t index = offset_index(0, i, par, t);
          const int32_t stored = load_from<uint16_t>(offsets + index * 2);
          if (stored != offset) {
            fail_offset(place, chunk * kChunkOffsets + index, stored, offset);
          }
          offset += static_cast<int32_t>(bits << shift);
        }
      }
    }
  }
}

// That a record at the end of the rows or columns has nothing outside of the matrix. Its offsets
// have been checked.
void check_edges(const RecordLayout& layout, const Place& place, const std::byte* record) {
  for (int32_t chunk = 0; chunk < layout.chunks; ++chunk) {
    const std::byte* const offsets = record + layout.mask_bytes();
    for (int32_t i = 0; i < kRowTiles; ++i) {
      for (int32_t par = 0; par < kHalves; ++par) {
        for (int32_t t = 0; t < kLanesInRow; ++t) {
          const uint32_t bits = value_bits(layout, record, chunk, i, par, t);
          const int64_t column = chunk * kChunkColumns + kHalves * t;
          require((bits & ~bits_inside(layout.pairs(), place.rows - 16 * i - 8 * par,
                                       place.columns - column)) == 0,
                  "tca_bme: chunk {} of record {} has bits outside of the matrix", chunk,
                  place.record);
          if (layout.pairs()) {
            const auto offset = load_from<uint16_t>(offsets + offset_index(chunk, i, par, t) * 2);
            check_last_pairs(place, bits, column, record + offset);
          }
        }
      }
    }
  }
}

// How many of `count` values are zeros. All counts of a record fit 16 bits; as wide as a value,
// they let the compiler vectorise the loop.
int32_t count_zeros(const std::byte* values, int32_t count) {
  uint16_t zeros = 0;
  for (int32_t i = 0; i < count; ++i) {
    zeros += (load_from<uint16_t>(values + i * 2) & 0x7fff) == 0 ? 1 : 0;
  }
  return zeros;
}

// How many of `count` pairs are without a nonzero or have a negative zero.
int32_t count_wrong_pairs(const std::byte* pairs, int32_t count) {
  uint32_t wrong = 0;
  for (int32_t i = 0; i < count; ++i) {
    const auto pair = load_from<uint32_t>(pairs + i * 4);
    const bool zero = (pair & 0x7fff'7fff) == 0;
    const bool negative_zero = (pair & 0xffff) == 0x8000 || (pair & 0xffff'0000) == 0x8000'0000;
    wrong += zero || negative_zero ? 1 : 0;
  }
  return static_cast<int32_t>(wrong);
}

// Returns the number of nonzeros.
int64_t check_values(const RecordLayout& layout, const Place& place, const std::byte* values,
                     int32_t bits) {
  const int32_t count = bits * layout.value_bytes() / 2;
  const int32_t zeros = count_zeros(values, count);
  const int32_t wrong = layout.pairs() ? count_wrong_pairs(values, bits) : zeros;
  require(wrong == 0, "tca_bme: {} {} of record {} are 0", wrong,
          layout.pairs() ? "pairs, or negative values," : "nonzeros", place.record);
  return count - zeros;
}

// Of a record that has its masks and offsets at least. Returns the number of nonzeros.
int64_t check_record(const RecordLayout& layout, const Place& place,
                     std::span<const std::byte> record) {
  int32_t bits = 0;
  for (int32_t byte = 0; byte < layout.mask_bytes(); byte += 8) {
    bits += std::popcount(load_from<uint64_t>(record.data() + byte));
  }
  require(std::ssize(record) == layout.record_bytes(bits),
          "tca_bme: record {} has {} bytes, not the {} of {} bits", place.record, record.size(),
          layout.record_bytes(bits), bits);
  check_offsets(layout, place, record.data());
  if (place.rows < kRecordRows || place.columns < layout.columns()) {
    check_edges(layout, place, record.data());
  }
  check_padding(place.record, record, layout.header_bytes() + bits * layout.value_bytes());
  return check_values(layout, place, record.data() + layout.header_bytes(), bits);
}

}  // namespace

RecordChecker::RecordChecker(const EncodedWeight& e)
    : rows_(e.rows),
      columns_(e.columns),
      layout_(read_record_layout(e)),
      grid_(record_grid(e.rows, e.columns, layout_)) {
  require(e.dtype == DType::f16 || e.dtype == DType::bf16, "a tca_bme weight of {} values",
          name_of(e.dtype));
  require_parts(e, {{kLayout, DType::u32, e.part(kLayout).count()},
                    {kStarts, DType::u32, grid_.count() + 1},
                    {kRecords, DType::u8, e.part(kRecords).count()}});
  starts_ = checked_starts(e, grid_.count(),
                           {.least = layout_.header_bytes(), .most = layout_.max_record_bytes()});
}

int64_t RecordChecker::check(int64_t first, int64_t count,
                             std::span<const std::byte> records) const {
  return check_records(starts_, first, count, records, [&](int64_t r, const auto& record) {
    return check_record(layout_,
                        {.record = r,
                         .rows = rows_ - grid_.row_block(r) * kRecordRows,
                         .columns = columns_ - grid_.column(r) * layout_.columns()},
                        record);
  });
}

void validate_records(const EncodedWeight& e, ThreadPool& threads) {
  const RecordChecker checker(e);
  check_all_records(e, RecordParts(e), checker, threads);
}

}  // namespace sparsellm::tca_bme
