#include "sparse/tca_bme/format/record_parts.h"

#include <algorithm>
#include <array>

#include "kernels/base/error.h"

namespace sparsellm::tca_bme {
namespace {

// That starts reach wherever they are; negative if they do not reach that many headers.
int64_t max_values(int64_t records, int64_t header_bytes, int64_t value_bytes) {
  return (kMaxBytesOfRecords - records * (header_bytes + kRecordAlignment - 1)) / value_bytes;
}

}  // namespace

RecordLayout read_record_layout(const EncodedWeight& e) {
  std::array<uint32_t, kLayoutWords> words;
  read_layout_words(e, words);
  const auto& [chunks, values] = words;
  require(chunks == kFewChunks || chunks == kManyChunks,
          "tca_bme: {} chunks in a record; there are {} or {}", chunks, kFewChunks, kManyChunks);
  require(values <= 1, "tca_bme: values of the kind {}, which is neither 0 nor 1", values);
  require(values == 0 || chunks == kManyChunks, "tca_bme: pairs in records of {} chunks, not {}",
          chunks, kManyChunks);
  return {.chunks = static_cast<int32_t>(chunks), .values = static_cast<RecordValues>(values)};
}

EncodedPart layout_part(const RecordLayout& layout) {
  return layout_words_part(
      std::array{static_cast<uint32_t>(layout.chunks), static_cast<uint32_t>(layout.values)});
}

RecordLayout layout_of(const EncodedWeight& header) {
  return header.parts.empty() ? record_layout_for(header.rows * header.columns, header.nonzeros)
                              : read_record_layout(header);
}

RecordsFor goal_of(const EncodedWeight& e) {
  const RecordLayout fastest = record_layout_for(e.rows * e.columns, e.nonzeros);
  const RecordLayout layout = layout_of(e);
  return fastest.pairs() && !layout.pairs() && layout.chunks == fastest.chunks ? RecordsFor::size
                                                                               : RecordsFor::speed;
}

bool starts_hold(int64_t rows, int64_t columns, int64_t nonzeros, RecordsFor goal) {
  const RecordLayout layout = record_layout_for(rows * columns, nonzeros, goal);
  return nonzeros <= max_values(record_grid(rows, columns, layout).count(), layout.header_bytes(),
                                layout.value_bytes());
}

int64_t expected_record_bytes(const EncodedWeight& header) {
  const int64_t rows = header.rows;
  const int64_t columns = header.columns;
  const int64_t nonzeros = header.nonzeros;
  const RecordLayout layout = layout_of(header);
  const double density = rows * columns == 0
                             ? 0.0
                             : static_cast<double>(nonzeros) / static_cast<double>(rows * columns);
  // A pair is left out if both of its elements are zeros.
  const double pairs = static_cast<double>(rows) * static_cast<double>(ceil_div(columns, 2)) *
                       (1.0 - (1.0 - density) * (1.0 - density));
  const double values =
      (layout.pairs() ? pairs : static_cast<double>(nonzeros)) * layout.value_bytes();
  constexpr double kMeanPadding = kRecordAlignment / 2.0 - 1.0;  // values have an even size
  const int64_t count = record_grid(rows, columns, layout).count();
  const double records = static_cast<double>(count) * (layout.header_bytes() + kMeanPadding);
  return static_cast<int64_t>(values + records) +
         (count + 1 + kLayoutWords) * int64_t{sizeof(uint32_t)};
}

bool starts_hold_any(int64_t rows, int64_t columns) {
  // More records than with many chunks, headers larger than with few or with pairs, and values at
  // least as many as those of pairs, which are for few nonzeros only.
  constexpr RecordLayout kFew{.chunks = kFewChunks, .values = RecordValues::single};
  constexpr RecordLayout kMany{.chunks = kManyChunks, .values = RecordValues::single};
  return rows * columns <= max_values(record_grid(rows, columns, kFew).count(),
                                      kMany.header_bytes(), kFew.value_bytes());
}

}  // namespace sparsellm::tca_bme
