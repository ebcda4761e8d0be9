#pragma once

#include <utility>

#include "kernels/base/cuda_state.cuh"

namespace sparsellm {

// A kernel that was launched to begin early may do so from here on (programmatic dependent launch);
// it waits for the results of this one by itself.
__device__ inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

struct LaunchShape {
  dim3 blocks;
  dim3 threads;
  size_t shared_bytes = 0;
};

// The one way to start a kernel: on the context's stream, with its error checked. Nothing is
// started if there are no blocks.
template <class... Parameters, class... Arguments>
void launch(const ExecContext& ctx, void (*kernel)(Parameters...), const LaunchShape& shape,
            Arguments&&... arguments) {
  if (shape.blocks.x == 0 || shape.blocks.y == 0 || shape.blocks.z == 0) {
    return;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.blocks;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = cuda_state(ctx).stream;
  check_cuda(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

}  // namespace sparsellm
