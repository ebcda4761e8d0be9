#include "sparse/tiled_csl/cuda/tile_wgmma.cuh"
#include "sparse/tiled_csl/cuda/tile_wgmma_kernels.cuh"

namespace sparsellm::tiled_csl {
namespace {

template <class T, int kGroups, bool kFast>
constexpr TileKernel kKernel = &tile_wgmma_kernel<T, kGroups, kFast, wgmma_threads(kGroups)>;
template <class T>
TileKernel kernel_for(int groups, bool fast) {
  if (groups == 1) {
    return fast ? kKernel<T, 1, true> : kKernel<T, 1, false>;
  }
  return fast ? kKernel<T, 2, true> : kKernel<T, 2, false>;
}

}  // namespace

TileKernel tile_wgmma_kernel_for(DType dtype, int groups, bool fast) {
  return dtype == DType::f16 ? kernel_for<__half>(groups, fast)
                             : kernel_for<__nv_bfloat16>(groups, fast);
}

}  // namespace sparsellm::tiled_csl
