#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "sparse/activation/cuda/fused_mlp.cuh"

namespace sparsellm::fused {

template <class T>
FusedKernel fused_plain_kernel(int tiles) {
  switch (tiles) {
    case 8:
      return &fused_mlp_kernel<T, 1, 8>;
    case 10:
      return &fused_mlp_kernel<T, 1, 10>;
    case 14:
      return &fused_mlp_kernel<T, 1, 14>;
    case 18:
      return &fused_mlp_kernel<T, 1, 18>;
    default:
      return nullptr;
  }
}

template FusedKernel fused_plain_kernel<__half>(int tiles);
template FusedKernel fused_plain_kernel<__nv_bfloat16>(int tiles);

}  // namespace sparsellm::fused
