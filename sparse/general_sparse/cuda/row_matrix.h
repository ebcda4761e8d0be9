#pragma once

#include <cstdint>

namespace sparsellm::general_sparse {

// An encoding whose groups are apart (interleave 1, one panel, no shared rows) on a CUDA device, as
// kernels see it (row_product.cuh).
struct RowMatrix {
  const uint32_t* starts = nullptr;     // of units
  const uint16_t* row_order = nullptr;  // null: rows are in order
  const uint8_t* positions = nullptr;
  const uint8_t* values = nullptr;
  int rows = 0;
  int window_rows = 0;
};

// Some consecutive entries of a long row, which a thread block multiplies.
struct RowPiece {
  uint32_t begin = 0;  // units
  uint32_t end = 0;
  uint32_t row = 0;
  uint32_t partial = 0;  // where its sums are put; kWholeRow: it is all of the row
};
inline constexpr uint32_t kWholeRow = 0xffffffff;

// A row of several pieces.
struct SplitRow {
  uint32_t row = 0;
  uint32_t first_partial = 0;
  uint32_t partials = 0;
};

struct RowOperands {
  const void* b = nullptr;    // row k of B begins at k * b_stride; its tokens are side by side
  void* c = nullptr;          // the element of row m and token t is that at m * c_row + t * c_token
  float* partials = nullptr;  // [tiles, partials, tokens of a tile]
  const RowPiece* pieces = nullptr;
  const SplitRow* split_rows = nullptr;
  int64_t b_stride = 0;
  int64_t c_row = 0;
  int64_t c_token = 0;
  int tokens = 0;
  int longest = 0;     // units of a row that is not in pieces
  int row_groups = 1;  // groups of threads that share a row: 1, 2, 4, ..., the groups of a warp
  int row_blocks = 0;  // blocks that have whole rows; the others have a piece each
  int partial_count = 0;
  int split_count = 0;
  bool vectors = false;  // the tokens of a thread can be loaded and stored at once
};

}  // namespace sparsellm::general_sparse
