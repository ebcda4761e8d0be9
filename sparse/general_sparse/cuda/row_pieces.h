#pragma once

#include <cstdint>
#include <vector>

#include "sparse/general_sparse/cuda/row_matrix.h"
#include "sparse/general_sparse/format/parts.h"

namespace sparsellm::general_sparse {

// How the long row groups of an encoding, whose groups are apart, are shared by warps and thread
// blocks.
struct RowPieces {
  int64_t mean_entries = 0;         // of a group
  int longest = 0;                  // units of one that is neither among pieces nor among warp_rows
  std::vector<RowPiece> pieces;     // of blocks
  std::vector<RowPiece> warp_rows;  // whole
  std::vector<SplitRow> split_rows;
  int partials = 0;
};
RowPieces row_pieces(const Parts& parts);

}  // namespace sparsellm::general_sparse
