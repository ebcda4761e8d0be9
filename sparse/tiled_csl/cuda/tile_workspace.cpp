#include "sparse/tiled_csl/cuda/tile_workspace.h"

#include <algorithm>

#include "kernels/base/workspace.h"
#include "sparse/expand_matmul.h"
#include "sparse/tiled_csl/format/tile_layout.h"

namespace sparsellm {

int64_t tile_gemm_workspace_bytes(int64_t columns, int64_t tokens) {
  using tiled_csl::kTileColumns;
  return tiled_csl::ceil_div(columns, kTileColumns) * kTileColumns *
         std::min(tokens, kTileGemmMostTokens) * int64_t{sizeof(uint16_t)};
}

int64_t tiled_csl::tiles_workspace_bytes(int64_t rows, int64_t columns, int64_t tokens) {
  const int64_t ordered = tile_gemm_workspace_bytes(columns, tokens) / size_of(DType::f32);
  const int64_t single = std::max(expand_single_piece_workspace_bytes(rows, columns),
                                  Workspace::tensor_bytes(DType::f32, {ordered}));
  return tokens <= kMaxSinglePieceTokens
             ? single
             : std::max(single, expand_matmul_workspace_bytes(rows, columns));
}

}  // namespace sparsellm
