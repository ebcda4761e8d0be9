#pragma once

#include <cstdint>

// What products with tiled_csl take from the workspace on a CUDA device, by shapes alone. In every
// build: what a model takes on a GPU can be asked without one.
namespace sparsellm {

// What tile_gemm_cuda() needs: x in the order of a tile's columns, for at most kTileGemmMostTokens
// tokens at a time.
inline constexpr int64_t kTileGemmMostTokens = 1024;
int64_t tile_gemm_workspace_bytes(int64_t columns, int64_t tokens);

namespace tiled_csl {

// Up to here pieces of an expanded weight do not overlap: two of them take more memory than all
// else in a step of few tokens.
inline constexpr int64_t kMaxSinglePieceTokens = 1024;

// The most that any plan of a weight needs.
int64_t tiles_workspace_bytes(int64_t rows, int64_t columns, int64_t tokens);

}  // namespace tiled_csl

}  // namespace sparsellm
