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

// Waits for the results of the kernels before. Each block of a kernel that is launched to begin
// early does so, whatever it has to do, before it writes anything or reads what they write: who
// waits for one kernel of a chain has then waited for all before it.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

struct LaunchShape {
  dim3 blocks;
  dim3 threads;
  size_t shared_bytes = 0;
  bool early = false;  // the kernel waits for the previous one by itself
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
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs =
      shape.early && cuda_state(ctx).begins_early && ctx.launches == Launches::overlapping ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

}  // namespace sparsellm
