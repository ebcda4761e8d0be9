#pragma once

#include <cstdint>

namespace sparsellm::general_sparse {

// An encoding whose row groups are apart (interleave 1, one panel) on a CUDA device, as kernels see
// it (row_product.cuh).
struct RowMatrix {
  const uint32_t* starts = nullptr;     // of units
  const uint16_t* row_order = nullptr;  // null: rows are in order
  const uint8_t* positions = nullptr;
  const uint8_t* values = nullptr;
  int rows = 0;
  int groups = 0;  // of rows that share positions
  int window_groups = 0;
};

// Some consecutive entries of a long row group, which a thread block multiplies, or a warp.
struct RowPiece {
  uint32_t begin = 0;  // units
  uint32_t end = 0;
  uint32_t row = 0;                // of groups
  uint32_t partial = 0xffffffffu;  // where its sums are put; kWholeRow: it is all of the row
};
inline constexpr uint32_t kWholeRow = 0xffffffffu;

// A row of several pieces.
struct SplitRow {
  uint32_t row = 0;
  uint32_t first_partial = 0;
  uint32_t partials = 0;
};

struct RowOperands {
  const void* b = nullptr;  // row k of B begins at k * b_stride; its tokens are side by side
  void* c = nullptr;        // the element of row m and token t is that at m * c_row + t * c_token
  const void* bias = nullptr;  // [rows] or null
  float* partials = nullptr;   // [tiles, partials, shared rows, tokens of a tile]
  const RowPiece* pieces = nullptr;
  const SplitRow* split_rows = nullptr;
  int64_t b_stride = 0;
  int64_t c_row = 0;
  int64_t c_token = 0;
  int tokens = 0;
  int block_pieces = 0;  // at the beginning of `pieces`
  int warp_rows = 0;     // after them, each a whole row
  int warp_blocks = 0;   // that have these
  int longest = 0;       // units of a row that is not in pieces
  int row_groups = 1;    // groups of threads that share a row: 1, 2, 4, ..., the groups of a warp
  int partial_count = 0;
  bool relu = false;     // C is the greater of A * B + bias and 0
  bool vectors = false;  // the tokens of a thread can be loaded and stored at once
};

}  // namespace sparsellm::general_sparse
