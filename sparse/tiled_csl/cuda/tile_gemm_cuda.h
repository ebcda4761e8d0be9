#pragma once

#include <cstdint>

#include "kernels/base/exec.h"
#include "sparse/cuda_product_operands.h"
#include "sparse/tiled_csl/cuda/tile_workspace.h"

namespace sparsellm {

struct TileMatrix;

// tile_matmul_cuda() for many tokens, by the kernel of tile_gemm.cuh: each tile is extracted once
// for 256 of them. Takes tile_gemm_workspace_bytes() as the operands' workspace, for x in the order
// of a tile's columns; launches for kTileGemmMostTokens at a time. Sums depend on how many tokens
// there are.
void tile_gemm_cuda(const TileMatrix& matrix, const CudaProductOperands& operands,
                    const ExecContext& ctx);

// Whether the device, and the build, run it for such a matrix.
bool tile_gemm_fits(const TileMatrix& matrix);

}  // namespace sparsellm
