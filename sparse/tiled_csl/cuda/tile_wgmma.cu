#include "sparse/tiled_csl/cuda/tile_wgmma.cuh"
#include "sparse/tiled_csl/cuda/tile_wgmma_kernels.cuh"

namespace sparsellm::tiled_csl {
namespace {

template <class T, int kGroups>
TileKernel kernel_for(bool fast) {
  constexpr int kThreads = kGroups * kGroupThreads + kMostExtractors * kWarp;
  return fast ? &tile_wgmma_kernel<T, kGroups, true, kThreads>
              : &tile_wgmma_kernel<T, kGroups, false, kThreads>;
}
template <class T>
TileKernel kernel_for(int groups, bool fast) {
  return groups == 1 ? kernel_for<T, 1>(fast) : kernel_for<T, 2>(fast);
}

}  // namespace

TileKernel tile_wgmma_kernel_for(DType dtype, int groups, bool fast) {
  return dtype == DType::f16 ? kernel_for<__half>(groups, fast)
                             : kernel_for<__nv_bfloat16>(groups, fast);
}

}  // namespace sparsellm::tiled_csl
