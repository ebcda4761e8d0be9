#pragma once

#include "kernels/base/dtype.h"
#include "sparse/tiled_csl/cuda/tile_pipeline.cuh"

namespace sparsellm::tiled_csl {

using TileKernel = void (*)(TileParameters);

// A step: two tiles, one below the other.
constexpr int kStepTiles = 2;
constexpr int kGroupThreads = 128;
constexpr int kGroupTokens = 64;
constexpr int kWgmmaTiles = 8;  // at once, of a thread block

// Warps that extract a tile, by the registers of a multiprocessor.
constexpr int tile_parts(int groups) { return groups == 1 ? 2 : 1; }
constexpr int wgmma_threads(int groups) {
  return groups * kGroupThreads + kWgmmaTiles * tile_parts(groups) * kWarp;
}

// Of the threads of warpgroups that multiply, and of others: those that the block got when it
// started, redistributed.
constexpr int group_registers(int groups) { return groups == 1 ? 224 : 192; }
constexpr int kExtractorRegisters = 64;

// tile_wgmma_kernel for 1 or 2 warpgroups that multiply; the fast one takes x whose rows begin at
// multiples of 16 bytes, and end with a tile. nullptr in a build without code for compute
// capability 9.0.
TileKernel tile_wgmma_kernel_for(DType dtype, int groups, bool fast);

}  // namespace sparsellm::tiled_csl
