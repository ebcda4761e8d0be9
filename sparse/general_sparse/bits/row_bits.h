#pragma once

#include <cstdint>

#include "sparse/general_sparse/format/chunks.h"

namespace sparsellm::general_sparse {

// Where the nonzeros of a matrix are, as the encoders of dense matrices read them, on the host and
// on a CUDA device: a bit for each element, 64 columns to a word.
inline constexpr int kBitsOfWord = 64;

struct RowBits {
  const uint64_t* words = nullptr;  // [rows, row_words]; bits after the last column are 0
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t row_words = 0;
};

// What the entries of a row group in a panel are: a column is one if any row has a nonzero there.
// A panel begins with a word.
struct GroupBits {
  const uint64_t* first = nullptr;  // of the first row, in the panel
  int64_t row_words = 0;
  int rows = 0;   // 0: there is no such group
  int words = 0;  // of the panel

  constexpr uint64_t operator()(int word) const {
    uint64_t bits = 0;
    if (word < words) {
      for (int row = 0; row < rows; ++row) {
        bits |= first[row * row_words + word];
      }
    }
    return bits;
  }
};

// Of a group of the matrix, which may have fewer rows if it is the last one.
constexpr GroupBits group_bits(const RowBits& m, int shared_rows, const Chunk& chunk,
                               int64_t group) {
  const int64_t row = group * shared_rows;
  const int64_t rows = m.rows - row < shared_rows ? m.rows - row : shared_rows;
  return {.first = m.words + row * m.row_words + chunk.first_column / kBitsOfWord,
          .row_words = m.row_words,
          .rows = static_cast<int>(rows),
          .words = static_cast<int>(ceil_div(chunk.columns, kBitsOfWord))};
}

}  // namespace sparsellm::general_sparse
