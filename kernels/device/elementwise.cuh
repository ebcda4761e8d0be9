#pragma once

#include <algorithm>

#include "kernels/base/launch.cuh"

namespace sparsellm {

// A grid for `rows` rows of `columns` elements: blockIdx.x is the row, the blocks along y and their
// threads go over its columns. Kernels loop over columns from elementwise_first() by
// elementwise_step(), so any shape is right.
inline LaunchShape elementwise_shape(int64_t rows, int64_t columns, bool pdl = false) {
  constexpr int64_t kThreads = 256;
  constexpr int64_t kMaxBlocksPerRow = 64;
  const int64_t blocks = (columns + kThreads - 1) / kThreads;
  return {.blocks =
              dim3(static_cast<unsigned>(columns == 0 ? 0 : rows),
                   static_cast<unsigned>(std::min(std::max<int64_t>(blocks, 1), kMaxBlocksPerRow))),
          .threads = kThreads,
          .shared_bytes = 0,
          .pdl = pdl};
}

__device__ inline int elementwise_first() { return blockIdx.y * blockDim.x + threadIdx.x; }
__device__ inline int elementwise_step() { return gridDim.y * blockDim.x; }

}  // namespace sparsellm
