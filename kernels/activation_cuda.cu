#include "kernels/activation_cuda.cuh"
#include "kernels/activation_device.h"
#include "kernels/base/pdl.cuh"
#include "kernels/device/cuda_types.cuh"
#include "kernels/device/elementwise.cuh"
#include "kernels/device/neuron_tally.cuh"

namespace sparsellm {
namespace {

// What a thread finds in its columns of a row.
struct ColumnCounts {
  int skipped = 0;
  int active = 0;

  __device__ void add(bool is_skipped, float result) {
    skipped += is_skipped ? 1 : 0;
    active += result != 0.0f ? 1 : 0;
  }
};

// By all threads of the blocks of a row.
__device__ void count_row(const TallyRows& tally, int64_t row, const ColumnCounts& counts) {
  if (tally.counters != nullptr && tally.counts(row)) {  // the same for the whole block
    add_to_counters(tally.counters, elementwise_first() == 0 ? 1 : 0, counts.skipped,
                    counts.active);
  }
}

template <class T>
__global__ void activate_kernel(Activation activation, TallyRows tally, T* x, int64_t stride,
                                int columns) {
  launch_dependents();
  wait_on_dependencies();
  T* row = x + blockIdx.x * stride;
  ColumnCounts counts;
  for (int i = elementwise_first(); i < columns; i += elementwise_step()) {
    const float value = activated(activation.kind, activation.threshold, f32_of(row[i]));
    const bool is_skipped = tally.skips(blockIdx.x, i);
    const T result = from_f32<T>(is_skipped ? 0.0f : value);
    row[i] = result;
    counts.add(is_skipped, f32_of(result));
  }
  count_row(tally, blockIdx.x, counts);
}

template <class T>
__global__ void activate_gated_kernel(Activation activation, const T* gate_up, int64_t in_stride,
                                      TallyRows tally, T* y, int64_t y_stride, int columns) {
  launch_dependents();
  wait_on_dependencies();
  const T* gate = gate_up + blockIdx.x * in_stride;
  const T* up = gate + columns;
  ColumnCounts counts;
  for (int i = elementwise_first(); i < columns; i += elementwise_step()) {
    const float open = activated(activation.kind, activation.threshold, f32_of(gate[i]));
    const float value = open * f32_of(up[i]);
    const bool is_skipped = tally.skips(blockIdx.x, i);
    const T result = from_f32<T>(is_skipped ? 0.0f : value);
    y[blockIdx.x * y_stride + i] = result;
    counts.add(is_skipped, f32_of(result));
  }
  count_row(tally, blockIdx.x, counts);
}

}  // namespace

void activate_cuda(const Activation& activation, const NeuronTally& tally, Tensor x,
                   ExecContext& ctx) {
  visit_activation(x.dtype(), [&]<class T>(T) {
    launch(ctx, activate_kernel<T>, elementwise_shape(x.size(0), x.size(1), true), activation,
           TallyRows(tally, 0, x.size(0)), static_cast<T*>(x.raw()), x.row_stride(),
           static_cast<int>(x.size(1)));
  });
}

void activate_gated_cuda(const Activation& activation, const Tensor& gate_up,
                         const NeuronTally& tally, Tensor y, ExecContext& ctx) {
  visit_activation(y.dtype(), [&]<class T>(T) {
    launch(ctx, activate_gated_kernel<T>, elementwise_shape(y.size(0), y.size(1), true), activation,
           static_cast<const T*>(gate_up.raw()), gate_up.row_stride(),
           TallyRows(tally, 0, y.size(0)), static_cast<T*>(y.raw()), y.row_stride(),
           static_cast<int>(y.size(1)));
  });
}

}  // namespace sparsellm
