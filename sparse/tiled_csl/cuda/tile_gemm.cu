#include "sparse/tiled_csl/cuda/tile_gemm.cuh"
#include "sparse/tiled_csl/cuda/tile_gemm_kernels.cuh"

namespace sparsellm::tiled_csl {

GemmKernel tile_gemm_kernel_for(DType dtype) {
  return dtype == DType::f16 ? &tile_gemm_kernel<__half> : &tile_gemm_kernel<__nv_bfloat16>;
}

}  // namespace sparsellm::tiled_csl
