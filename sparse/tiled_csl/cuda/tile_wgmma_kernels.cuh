#pragma once

#include "kernels/base/dtype.h"
#include "sparse/tiled_csl/cuda/tile_pipeline.cuh"

namespace sparsellm::tiled_csl {

using TileKernel = void (*)(TileParameters);

// Extracting warps beside the warpgroups, at most: two warpgroups of them, by the registers of a
// multiprocessor.
inline constexpr int kMostExtractors = 8;

// tile_wgmma_kernel for 1 or 2 warpgroups; the fast one takes x whose rows begin at multiples of 16
// bytes, and pairs of whole tiles. nullptr in a build without code for compute capability 9.0.
TileKernel tile_wgmma_kernel_for(DType dtype, int groups, bool fast);

}  // namespace sparsellm::tiled_csl
