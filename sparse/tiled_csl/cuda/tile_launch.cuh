#pragma once

#include <cstdint>

#include "sparse/tiled_csl/cuda/tile_matmul.cuh"
#include "sparse/tiled_csl/cuda/tile_matmul_cuda.h"
#include "sparse/tiled_csl/cuda/tile_wgmma_kernels.cuh"

namespace sparsellm::tiled_csl {

constexpr int kMostTiles = 11;  // of a thread block, for up to 16 tokens, by the registers

// A kernel, the tokens that it takes at once, and the most tiles that a thread block of it has.
struct TileVariant {
  TileKernel kernel;
  int tokens;
  int most_tiles;
};
template <class T, int N, int kWarps, class Stages = AllStages>
TileVariant tile_variant() {
  static_assert(kWarps <= kMaxWarps);
  return {.kernel = &tile_matmul_kernel<T, N, kWarps * kWarp, Stages>,
          .tokens = N,
          .most_tiles = kWarps};
}

// tile_matmul_cuda() by other kernels, which take the same parameters, and with fewer slots than
// there is room for: with none, the kernel must not wait for pieces.
struct TileVariants {
  TileVariant (*variant_for)(DType dtype, int groups, bool fast, int64_t tokens) = nullptr;
  int most_slots = kMaxSlots;
};
void tile_matmul_by(const TileVariants& variants, const TileMatrix& matrix,
                    const CudaProductOperands& operands, const TileMatmulConfig& config,
                    const ExecContext& ctx);

}  // namespace sparsellm::tiled_csl
