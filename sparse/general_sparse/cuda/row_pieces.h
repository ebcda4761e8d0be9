#pragma once

#include <cstdint>
#include <vector>

#include "sparse/general_sparse/cuda/row_matrix.h"
#include "sparse/general_sparse/format/parts.h"

namespace sparsellm::general_sparse {

// How the long rows of an encoding, whose groups are apart, are shared by thread blocks.
struct RowPieces {
  int longest = 0;  // units of a row that is not in pieces
  std::vector<RowPiece> pieces;
  std::vector<SplitRow> split_rows;
  int partials = 0;
};
RowPieces row_pieces(const Parts& parts);

}  // namespace sparsellm::general_sparse
