#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sparse/general_sparse/cuda/row_matrix.h"
#include "sparse/general_sparse/format/chunks.h"
#include "sparse/general_sparse/format/layout.h"

namespace sparsellm::general_sparse {

struct RowCounts {
  int64_t mean_entries = 0;  // of a row group
  int longest = 0;           // units of one that neither a warp nor a block has
  int block_pieces = 0;
  int warp_rows = 0;
  int partials = 0;
  int split_rows = 0;
};

// How the long row groups of an encoding, whose groups are apart, are shared by warps and thread
// blocks.
struct RowPieces {
  RowCounts counts = {};
  std::vector<RowPiece> pieces;  // of blocks, then whole ones of warps
  std::vector<SplitRow> split_rows;
};
// By the parts `starts` and `row_order` of the encoding, which has one panel.
RowPieces row_pieces(const Layout& layout, const ChunkGrid& grid, std::span<const uint32_t> starts,
                     std::span<const uint16_t> row_order);

}  // namespace sparsellm::general_sparse
