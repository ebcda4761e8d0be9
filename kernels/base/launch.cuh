#pragma once

#include <type_traits>
#include <utility>

#include "kernels/base/cuda_queue.h"
#include "kernels/base/cuda_state.cuh"

namespace sparsellm {

struct LaunchShape {
  dim3 blocks;
  dim3 threads;
  size_t shared_bytes = 0;  // dynamic; the caller has allowed the kernel more than 48 KiB
  // By programmatic dependent launch (kernels/base/pdl.cuh), where the context has it and its ops
  // overlap: the kernel calls wait_on_dependencies().
  bool pdl = false;
  // Thread blocks of a cluster, along x; 0: no clusters. More than 8 are not portable to every
  // device that has clusters.
  int cluster = 0;
};

// The one way to start a kernel: in the queue of `ctx`, with its error checked. Nothing is started
// if there are no blocks. `parameters` point to the kernel's.
inline void launch(const ExecContext& ctx, const void* kernel, const LaunchShape& shape,
                   void** parameters) {
  if (shape.blocks.x == 0 || shape.blocks.y == 0 || shape.blocks.z == 0) {
    return;
  }
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim = shape.blocks;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = cuda_queue(ctx).stream;
  config.attrs = attributes;
  if (shape.cluster > 0) {
    constexpr int kPortable = 8;
    if (shape.cluster > kPortable) {
      check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    }
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(shape.cluster);
    cluster.val.clusterDim.y = 1;
    cluster.val.clusterDim.z = 1;
  }
  if (shape.pdl && cuda_state(ctx).has_pdl && ctx.launches == Launches::overlapping) {
    cudaLaunchAttribute& pdl = attributes[config.numAttrs++];
    pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    pdl.val.programmaticStreamSerializationAllowed = 1;
  }
  check_cuda(cudaLaunchKernelExC(&config, kernel, parameters));
}

template <class... Parameters, class... Arguments>
void launch(const ExecContext& ctx, void (*kernel)(Parameters...), const LaunchShape& shape,
            Arguments&&... arguments) {
  [&](Parameters... converted) {
    void* parameters[] = {&converted..., nullptr};
    launch(ctx, reinterpret_cast<const void*>(kernel), shape, parameters);
  }(std::forward<Arguments>(arguments)...);
}

// The same for a kernel that was compiled when the program runs (kernels/base/kernel_library.h).
// The one struct that it takes is as large here as there: KernelLibrary::kernel() has checked that.
template <class Parameters>
void launch(const ExecContext& ctx, cudaKernel_t kernel, const LaunchShape& shape,
            const Parameters& parameters) {
  static_assert(std::is_trivially_copyable_v<Parameters>);
  Parameters copy = parameters;
  void* pointers[] = {&copy, nullptr};
  launch(ctx, static_cast<const void*>(kernel), shape, pointers);
}

}  // namespace sparsellm
