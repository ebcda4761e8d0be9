#include "kernels/activation_cuda.cuh"
#include "kernels/activation_device.h"
#include "kernels/base/pdl.cuh"
#include "kernels/device/cuda_types.cuh"
#include "kernels/device/elementwise.cuh"

namespace sparsellm {
namespace {

template <class T>
__global__ void activate_kernel(Activation activation, T* x, int64_t stride, int columns) {
  launch_dependents();
  wait_on_dependencies();
  T* row = x + blockIdx.x * stride;
  for (int i = elementwise_first(); i < columns; i += elementwise_step()) {
    row[i] = from_f32<T>(activated(activation.kind, activation.threshold, f32_of(row[i])));
  }
}

template <class T>
__global__ void activate_gated_kernel(Activation activation, const T* gate_up, int64_t in_stride,
                                      T* y, int64_t y_stride, int columns) {
  launch_dependents();
  wait_on_dependencies();
  const T* gate = gate_up + blockIdx.x * in_stride;
  const T* up = gate + columns;
  for (int i = elementwise_first(); i < columns; i += elementwise_step()) {
    const float open = activated(activation.kind, activation.threshold, f32_of(gate[i]));
    y[blockIdx.x * y_stride + i] = from_f32<T>(open * f32_of(up[i]));
  }
}

}  // namespace

void activate_cuda(const Activation& activation, Tensor x, ExecContext& ctx) {
  visit_activation(x.dtype(), [&]<class T>(T) {
    launch(ctx, activate_kernel<T>, elementwise_shape(x.size(0), x.size(1), true), activation,
           static_cast<T*>(x.raw()), x.row_stride(), static_cast<int>(x.size(1)));
  });
}

void activate_gated_cuda(const Activation& activation, const Tensor& gate_up, Tensor y,
                         ExecContext& ctx) {
  visit_activation(y.dtype(), [&]<class T>(T) {
    launch(ctx, activate_gated_kernel<T>, elementwise_shape(y.size(0), y.size(1), true), activation,
           static_cast<const T*>(gate_up.raw()), gate_up.row_stride(), static_cast<T*>(y.raw()),
           y.row_stride(), static_cast<int>(y.size(1)));
  });
}

}  // namespace sparsellm
