#pragma once

#include <cstdint>

#include "kernels/base/cuda_queue.h"
#include "sparse/cuda_product_operands.h"
#include "sparse/tiled_csl/cuda/tile_matmul_cuda.h"
#include "sparse/tiled_csl/cuda/tile_pipeline.cuh"

namespace sparsellm::tiled_csl {

// Of a launch for `tokens` tokens from number `first` on, whose steps are cut into equal shares.
// Slots are for the caller to set.
inline TileParameters tile_parameters(const TileMatrix& matrix, const CudaProductOperands& operands,
                                      int64_t first, int64_t tokens, int64_t steps, int64_t shares,
                                      const CudaQueue& queue) {
  const auto aligned = [&](const void* p, int64_t stride) {
    return reinterpret_cast<uintptr_t>(p) % 16 == 0 &&
           (operands.tokens == 1 || stride % kChunk == 0);
  };
  return {.records = matrix.records,
          .starts = matrix.starts,
          .x = static_cast<const uint16_t*>(operands.x) + first * operands.x_stride,
          .x_stride = operands.x_stride,
          .y = static_cast<uint16_t*>(operands.y) + first * operands.y_stride,
          .y_stride = operands.y_stride,
          .bias = operands.bias,
          .partials = static_cast<float4*>(queue.workspace),
          .arrivals = queue.counters,
          .rows = static_cast<int>(matrix.rows),
          .columns = static_cast<int>(matrix.columns),
          .tokens = static_cast<int>(tokens),
          .row_tiles = static_cast<int>(tile_grid(matrix.rows, matrix.columns).columns),
          .share = static_cast<int>(steps / shares),
          .longer = static_cast<int>(steps % shares),
          .relu = operands.relu,
          .y_in_lines = aligned(operands.y, operands.y_stride),
          .x_aligned = aligned(operands.x, operands.x_stride)};
}

}  // namespace sparsellm::tiled_csl
