#include <algorithm>

#include "kernels/base/buffer.h"
#include "kernels/base/launch.cuh"
#include "kernels/device/cuda_types.cuh"
#include "kernels/fill_random_device.h"

namespace sparsellm {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1 << 14;  // some rounds on every GPU; the threads go on from there

// The intrinsics are never fused into one rounding, and neither is the CPU's code.
__device__ float random_value(const RandomFillSteps& steps, int64_t index) {
  const uint64_t bits = random_bits(steps.key, index);
  const float odd = static_cast<float>(2 * static_cast<int>(bits & 0xffffu) - 65535);
  return is_zero(steps, bits, index) ? 0.0f : __fadd_rn(steps.centre, __fmul_rn(odd, steps.step));
}

// A thread makes every (number of all threads)-th element. No shared memory; any n is right.
template <class T>
__global__ void __launch_bounds__(kThreads)
    fill_random_kernel(RandomFillSteps steps, T* x, int64_t n) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride) {
    x[i] = from_f32<T>(random_value(steps, steps.index_of(i)));
  }
}

}  // namespace

void fill_random_cuda(const RandomFill& fill, const ZeroThresholds& thresholds, Tensor x,
                      ExecContext& ctx) {
  const int64_t n = x.size(0);
  const int64_t blocks = std::min((n + kThreads - 1) / kThreads, kMaxBlocks);
  Buffer cell_zeros;
  if (!thresholds.zeros.empty()) {
    const auto bytes = static_cast<int64_t>(thresholds.zeros.size() * sizeof(uint64_t));
    cell_zeros = Buffer::scratch(ctx, bytes, "the densities of a random matrix");
    // The thresholds outlive the copy, since this function waits for it.
    ctx.cuda->copy_async(cell_zeros.data(), thresholds.zeros.data(), bytes, ctx.queue);
  }
  const RandomFillSteps steps =
      steps_of(fill, thresholds, static_cast<const uint64_t*>(cell_zeros.data()));
  visit_floating(x.dtype(), [&]<class T>(T) {
    launch(ctx, fill_random_kernel<T>,
           {.blocks = dim3(static_cast<unsigned>(blocks)), .threads = kThreads}, steps,
           static_cast<T*>(x.raw()), n);
  });
  if (cell_zeros.data() != nullptr) {
    ctx.cuda->synchronize();  // before the thresholds go
  }
}

}  // namespace sparsellm
