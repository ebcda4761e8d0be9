#include "kernels/add_device.h"
#include "kernels/base/pdl.cuh"
#include "kernels/device/cuda_types.cuh"
#include "kernels/device/elementwise.cuh"

namespace sparsellm {
namespace {

template <class T>
__global__ void add_kernel(const T* x, int64_t x_stride, float scale, float* y, int64_t y_stride,
                           int columns) {
  launch_dependents();
  wait_on_dependencies();
  const T* from = x + blockIdx.x * x_stride;
  float* to = y + blockIdx.x * y_stride;
  for (int i = elementwise_first(); i < columns; i += elementwise_step()) {
    to[i] = fmaf(f32_of(from[i]), scale, to[i]);
  }
}

}  // namespace

void add_cuda(const Tensor& x, Tensor y, ExecContext& ctx, float scale) {
  visit_activation(x.dtype(), [&]<class T>(T) {
    launch(ctx, add_kernel<T>, elementwise_shape(x.size(0), x.size(1), true),
           static_cast<const T*>(x.raw()), x.row_stride(), scale, static_cast<float*>(y.raw()),
           y.row_stride(), static_cast<int>(x.size(1)));
  });
}

}  // namespace sparsellm
