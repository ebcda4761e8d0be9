#include <cub/device/device_scan.cuh>

#include "kernels/base/buffer.h"
#include "kernels/base/cuda_state.cuh"
#include "sparse/running_totals_cuda.h"

namespace sparsellm {

void running_totals_cuda(uint32_t* numbers, int64_t count, const ExecContext& ctx) {
  if (count == 0) {
    return;
  }
  const cudaStream_t stream = cuda_queue(ctx).stream;
  size_t bytes = 0;
  check_cuda(cub::DeviceScan::InclusiveSum(nullptr, bytes, numbers, numbers, count, stream));
  const Buffer scratch = Buffer::scratch(ctx, static_cast<int64_t>(bytes), "an encoder");
  check_cuda(cub::DeviceScan::InclusiveSum(scratch.data(), bytes, numbers, numbers, count, stream));
  ctx.cuda->synchronize();
}

}  // namespace sparsellm
