#include <cuda_profiler_api.h>

#include "kernels/base/cuda_state.cuh"
#include "tools/bench/profile_device.h"

namespace sparsellm {

void profile_cuda(const std::function<void()>& work, const ExecContext& ctx) {
  ctx.cuda->synchronize();
  check_cuda(cudaProfilerStart());
  work();
  ctx.cuda->synchronize();
  check_cuda(cudaProfilerStop());
}

}  // namespace sparsellm
