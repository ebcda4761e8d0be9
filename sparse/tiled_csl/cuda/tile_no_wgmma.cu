#include "sparse/tiled_csl/cuda/tile_gemm_kernels.cuh"
#include "sparse/tiled_csl/cuda/tile_wgmma_kernels.cuh"

// Stands in for tile_wgmma.cu and tile_gemm.cu in a build that has no code for compute
// capability 9.0.
namespace sparsellm::tiled_csl {

TileKernel tile_wgmma_kernel_for(DType, int, bool) { return nullptr; }
GemmKernel tile_gemm_kernel_for(DType) { return nullptr; }

}  // namespace sparsellm::tiled_csl
