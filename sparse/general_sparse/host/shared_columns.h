#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "sparse/general_sparse/format/layout.h"
#include "sparse/matrices/compressed_rows.h"

namespace sparsellm::general_sparse {

// For each row of a group the number of its nonzero in some column, or kNoNonzero.
using ColumnNonzeros = std::array<int64_t, kMostSharedRows>;
inline constexpr int64_t kNoNonzero = -1;

// f(column, const ColumnNonzeros&) for each column in which a row of the group has a nonzero,
// ascending.
template <class F>
void for_each_shared_column(const CompressedRows& m, int shared_rows, int64_t group, F&& f) {
  const int64_t first_row = group * shared_rows;
  const int64_t count = std::min<int64_t>(shared_rows, m.rows() - first_row);
  const uint32_t* const columns = m.column_indices().data();
  const int64_t* const starts = m.starts().data() + first_row;
  ColumnNonzeros nonzeros;
  nonzeros.fill(kNoNonzero);
  if (count == 1) {
    for (int64_t i = starts[0]; i < starts[1]; ++i) {
      nonzeros[0] = i;
      f(columns[i], nonzeros);
    }
    return;
  }
  constexpr uint32_t kEnd = std::numeric_limits<uint32_t>::max();  // no column
  const auto rows = static_cast<size_t>(count);
  std::array<int64_t, kMostSharedRows> next{};
  std::array<uint32_t, kMostSharedRows> heads{};
  const auto set_head = [&](size_t row) {
    heads[row] = next[row] < starts[row + 1] ? columns[next[row]] : kEnd;
  };
  for (size_t row = 0; row < rows; ++row) {
    next[row] = starts[row];
    set_head(row);
  }
  for (;;) {
    const uint32_t column = *std::min_element(heads.begin(), heads.begin() + count);
    if (column == kEnd) {
      return;
    }
    for (size_t row = 0; row < rows; ++row) {
      const bool here = heads[row] == column;
      nonzeros[row] = here ? next[row]++ : kNoNonzero;
      if (here) {
        set_head(row);
      }
    }
    f(column, nonzeros);
  }
}

}  // namespace sparsellm::general_sparse
