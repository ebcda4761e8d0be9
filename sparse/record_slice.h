#pragma once

#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "sparse/weight_matrix.h"

namespace sparsellm {

// A matrix that is cut into records of equal size, those of the first rows from left to right, then
// those of the next. The last ones may reach beyond the matrix.
struct RecordTiling {
  int64_t rows = 0;  // of the matrix
  int64_t columns = 0;
  int64_t record_rows = 1;
  int64_t record_columns = 1;
};

// Whether a slice, which is inside, cuts through no record.
bool at_borders(const RecordTiling& tiling, const Slice& slice);

// The records of such a slice: a part of those of a matrix.
struct RecordSlice {
  // Consecutive records.
  struct Run {
    int64_t first = 0;  // in the matrix
    int64_t count = 0;
    int64_t begin = 0;  // in the slice
  };
  std::vector<Run> runs;
  // [R + 1], R being the number of records of the slice: where they begin if they follow each
  // other, in the units of the starts of the matrix.
  std::vector<uint32_t> starts;

  int64_t count() const { return std::ssize(starts) - 1; }
};
// `starts` of the whole matrix, which have been checked: as many as it has records and one more,
// ascending.
RecordSlice record_slice(const RecordTiling& tiling, std::span<const uint32_t> starts,
                         const Slice& slice);

// `of_all` * part / all, rounded down: what a part has of something, by its share of something
// else.
int64_t proportional(int64_t of_all, int64_t part, int64_t all);

}  // namespace sparsellm
