#pragma once

#include <array>
#include <cstdint>

#include "kernels/base/parallel.h"
#include "sparse/matrices/compressed_rows.h"

namespace sparsellm {

// What the layout of an encoding is chosen by: how long rows are, and how their nonzeros lie.
// Without nonzeros all is 0.
struct RowStatistics {
  int64_t nonzeros = 0;

  // Of the numbers of nonzeros of the rows.
  double mean_length = 0.0;
  double length_deviation = 0.0;  // the standard deviation, over all rows

  // Blocks of 2, 4 and 8 rows x 1 column, which begin at multiples of their rows: what rows that
  // share their positions would store. Rows that the last blocks lack count as zeros.
  struct SharedPositions {
    int64_t rows = 0;
    int64_t blocks = 0;  // that have a nonzero
  };
  std::array<SharedPositions, 3> shared{{{.rows = 2}, {.rows = 4}, {.rows = 8}}};

  // From a nonzero to the next one of its row: at least 1.
  static constexpr int64_t kLongGap = 255;  // the longest that a byte holds
  double mean_gap = 0.0;
  // Zeros to be stored so that no gap is longer; and, if rows are to begin with a gap from
  // column -1, before their first nonzeros.
  int64_t bridges = 0;
  int64_t first_bridges = 0;
};

// The same whatever the number of threads.
RowStatistics row_statistics(const CompressedRows& m, ThreadPool& threads);

}  // namespace sparsellm
