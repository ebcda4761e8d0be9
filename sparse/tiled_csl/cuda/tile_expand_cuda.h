#pragma once

#include "sparse/tiled_csl/cuda/tile_matmul_cuda.h"
#include "sparse/weight_matrix.h"

namespace sparsellm {

// dense [rows.count, columns], contiguous and 2 bytes an element: these rows of the matrix.
// Enqueues one kernel; may be captured in a graph.
void tile_expand_cuda(const TileMatrix& matrix, Range rows, void* dense, const ExecContext& ctx);

}  // namespace sparsellm
