#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/base/dtype.h"
#include "sparse/tiled_csl/cuda/tile_pipeline.cuh"

namespace sparsellm::tiled_csl {

constexpr int kGemmTokens = 256;      // of a step
constexpr int kGemmStages = 4;        // tiles in shared memory, each with a warp that extracts it
constexpr int kGemmLeastXStages = 3;  // of x; up to kGemmStages where there is room
constexpr int kGemmTokenBytes = kGemmTokens * kTileColumns * 2;  // x of a step
constexpr int kGemmGroupThreads = 256;                           // two warpgroups that multiply
constexpr int kGemmThreads = kGemmGroupThreads + kGemmStages * kWarp;
// Of threads that multiply, and of others: those that the block got when it started,
// redistributed.
constexpr int kGemmGroupRegisters = 200;
constexpr int kGemmExtractorRegisters = 104;

// In shared memory beside tiles, x and slots: barriers.
constexpr int kGemmStaticBytes = 8 * kGemmStages * (kMaxSlots + 3);

struct GemmParameters {
  TileParameters tile;  // share and longer: of steps; x is not used
  int token_tiles;      // of 256
  int x_stages;
};

using GemmKernel = void (*)(GemmParameters, CUtensorMap);

// tile_gemm_kernel; nullptr in a build without code for compute capability 9.0.
GemmKernel tile_gemm_kernel_for(DType dtype);

}  // namespace sparsellm::tiled_csl
