#pragma once

#include <cstdint>
#include <vector>

#include "kernels/zero_pattern.h"

namespace sparsellm {

// A matrix, row after row, cut into equal cells; those at its right and lower edge may be smaller.
struct ZeroGrid {
  int64_t columns = 1;  // of the matrix
  int64_t cell_rows = 1;
  int64_t cell_columns = 1;
  int64_t cells_across = 1;  // ceil(columns / cell_columns)

  constexpr int64_t cell_of(int64_t index) const {
    return index / columns / cell_rows * cells_across + index % columns / cell_columns;
  }
};

// For each cell of a grid how many of 2^32 equally probable numbers make an element 0, or, where
// `counted`, how many of its elements are 0. Cells that are counted are rows.
struct ZeroThresholds {
  ZeroGrid grid;
  bool counted = false;
  std::vector<uint64_t> zeros;
};

// Of a matrix [rows, columns] with at least one element, whose expected share of zeros is
// `sparsity`. Which cells are how dense depends on `key` and the other arguments alone. Of equal
// columns, or blocks, round(share * number) are dense, or as many fewer as the nonzeros suffice
// for; the others share the rest of the nonzeros evenly. Of blocks that are kept or
// not, density * number are kept, rounded up or down at random. `rows` are counted. The pattern is
// not uniform, and one that why_not() has nothing against.
ZeroThresholds zero_thresholds(const ZeroPattern& pattern, double sparsity, uint64_t key,
                               int64_t rows, int64_t columns);

}  // namespace sparsellm
