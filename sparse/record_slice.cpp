#include "sparse/record_slice.h"

namespace sparsellm {
namespace {

bool is_cut_at(Range range, int64_t size, int64_t step) {
  const int64_t end = range.begin + range.count;
  return range.begin % step == 0 && (end % step == 0 || end == size);
}

int64_t steps_of(int64_t size, int64_t step) { return (size + step - 1) / step; }

}  // namespace

bool at_borders(const RecordTiling& tiling, const Slice& slice) {
  return is_cut_at(slice.rows, tiling.rows, tiling.record_rows) &&
         is_cut_at(slice.columns, tiling.columns, tiling.record_columns);
}

RecordSlice record_slice(const RecordTiling& tiling, std::span<const uint32_t> starts,
                         const Slice& slice) {
  const int64_t across = steps_of(tiling.columns, tiling.record_columns);
  const int64_t first_row = slice.rows.begin / tiling.record_rows;
  const int64_t first_column = slice.columns.begin / tiling.record_columns;
  const int64_t rows = steps_of(slice.rows.count, tiling.record_rows);
  const int64_t columns = steps_of(slice.columns.count, tiling.record_columns);
  RecordSlice result{.runs = {}, .starts = {0}};
  if (rows == 0 || columns == 0) {
    return result;
  }
  if (columns == across) {
    result.runs.push_back({.first = first_row * across, .count = rows * across, .begin = 0});
  } else {
    for (int64_t row = 0; row < rows; ++row) {
      result.runs.push_back({.first = (first_row + row) * across + first_column,
                             .count = columns,
                             .begin = row * columns});
    }
  }
  for (const RecordSlice::Run& run : result.runs) {
    const auto begin = static_cast<size_t>(run.first);
    const uint32_t shift = result.starts.back() - starts[begin];  // modulo 2^32
    for (int64_t i = 1; i <= run.count; ++i) {
      result.starts.push_back(starts[begin + static_cast<size_t>(i)] + shift);
    }
  }
  return result;
}

int64_t proportional(int64_t of_all, int64_t part, int64_t all) {
  if (part == all) {
    return of_all;
  }
  return static_cast<int64_t>(static_cast<double>(of_all) * static_cast<double>(part) /
                              static_cast<double>(all));
}

}  // namespace sparsellm
