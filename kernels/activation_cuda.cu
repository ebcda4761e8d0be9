#include "kernels/activation_cuda.cuh"
#include "kernels/activation_device.h"
#include "kernels/base/pdl.cuh"
#include "kernels/device/cuda_types.cuh"
#include "kernels/device/elementwise.cuh"

namespace sparsellm {
namespace {

// Which results are not 0.
struct ActiveFlags {
  const uint8_t* flags;  // null: all
  int64_t stride;

  explicit ActiveFlags(const Tensor& active)
      : flags(static_cast<const uint8_t*>(active.raw())), stride(active.row_stride()) {}

  __device__ bool at(int64_t row, int column) const {
    return flags == nullptr || flags[row * stride + column] != 0;
  }
};

template <class T>
__global__ void activate_kernel(Activation activation, ActiveFlags active, T* x, int64_t stride,
                                int columns) {
  launch_dependents();
  wait_on_dependencies();
  T* row = x + blockIdx.x * stride;
  for (int i = elementwise_first(); i < columns; i += elementwise_step()) {
    const float value = activated(activation.kind, activation.threshold, f32_of(row[i]));
    row[i] = from_f32<T>(active.at(blockIdx.x, i) ? value : 0.0f);
  }
}

template <class T>
__global__ void activate_gated_kernel(Activation activation, const T* gate_up, int64_t in_stride,
                                      ActiveFlags active, T* y, int64_t y_stride, int columns) {
  launch_dependents();
  wait_on_dependencies();
  const T* gate = gate_up + blockIdx.x * in_stride;
  const T* up = gate + columns;
  for (int i = elementwise_first(); i < columns; i += elementwise_step()) {
    const float open = activated(activation.kind, activation.threshold, f32_of(gate[i]));
    const float value = open * f32_of(up[i]);
    y[blockIdx.x * y_stride + i] = from_f32<T>(active.at(blockIdx.x, i) ? value : 0.0f);
  }
}

}  // namespace

void activate_cuda(const Activation& activation, const Tensor& active, Tensor x, ExecContext& ctx) {
  visit_activation(x.dtype(), [&]<class T>(T) {
    launch(ctx, activate_kernel<T>, elementwise_shape(x.size(0), x.size(1), true), activation,
           ActiveFlags(active), static_cast<T*>(x.raw()), x.row_stride(),
           static_cast<int>(x.size(1)));
  });
}

void activate_gated_cuda(const Activation& activation, const Tensor& gate_up, const Tensor& active,
                         Tensor y, ExecContext& ctx) {
  visit_activation(y.dtype(), [&]<class T>(T) {
    launch(ctx, activate_gated_kernel<T>, elementwise_shape(y.size(0), y.size(1), true), activation,
           static_cast<const T*>(gate_up.raw()), gate_up.row_stride(), ActiveFlags(active),
           static_cast<T*>(y.raw()), y.row_stride(), static_cast<int>(y.size(1)));
  });
}

}  // namespace sparsellm
