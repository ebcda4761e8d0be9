#include "kernels/device/cuda_types.cuh"
#include "kernels/device/elementwise.cuh"
#include "kernels/rope_device.h"

namespace sparsellm {
namespace {

__global__ void rope_angles_kernel(const int* positions, const float* frequencies, float* cos_sin,
                                   int64_t stride, int half) {
  const int64_t row = blockIdx.x;
  for (int i = elementwise_first(); i < half; i += elementwise_step()) {
    const float angle = static_cast<float>(positions[row]) * frequencies[i];
    cos_sin[row * stride + i] = cosf(angle);
    cos_sin[row * stride + half + i] = sinf(angle);
  }
}

}  // namespace

void rope_angles_cuda(const Tensor& positions, const Tensor& frequencies, Tensor cos_sin,
                      ExecContext& ctx) {
  launch(ctx, rope_angles_kernel, elementwise_shape(cos_sin.size(0), frequencies.size(0)),
         static_cast<const int*>(positions.raw()), static_cast<const float*>(frequencies.raw()),
         static_cast<float*>(cos_sin.raw()), cos_sin.row_stride(),
         static_cast<int>(frequencies.size(0)));
}

}  // namespace sparsellm
