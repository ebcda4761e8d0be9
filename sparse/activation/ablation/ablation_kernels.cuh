#pragma once

#include <cstdint>

#include "kernels/base/launch.cuh"
#include "kernels/base/pdl.cuh"
#include "kernels/base/warp.cuh"
#include "sparse/activation/row_pieces.cuh"

// A warp per row, of one token. Lanes have eight elements of every 256.
namespace sparsellm::mlp_ablation {

inline constexpr int kWarps = 8;  // of a block
inline constexpr int kThreads = kWarps * kWarpSize;
inline constexpr unsigned kAllLanes = 0xffffffffu;
// Of down without atomics: the neurons of a block, 32 for each warp.
inline constexpr int kRange = kWarps * kWarpSize;
static_assert(kTileElements == kThreads);  // a thread adds up the warps' sums of a column

// The row of a warp; it may be beyond the last.
__device__ inline int64_t row_of_warp() {
  return int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
}
__device__ inline int first_column() {
  return static_cast<int>(threadIdx.x) % kWarpSize * kPieceElements;
}

template <class T>
__device__ float multiply_row(const MatrixRows<T>& w, int64_t row, const MatrixRows<T>& x,
                              int columns) {
  float sum = 0.0f;
#pragma unroll 4
  for (int column = first_column(); column < columns; column += kTileElements) {
    float weights[kPieceElements];
    float values[kPieceElements];
    unpack_piece<T>(load_piece(w.row(row) + column, columns - column, w.aligned), weights);
    unpack_piece<T>(load_piece(x.row(0) + column, columns - column, x.aligned), values);
#pragma unroll
    for (int i = 0; i < kPieceElements; ++i) {
      sum = fmaf(weights[i], values[i], sum);
    }
  }
  return warp_sum(sum);
}

__device__ inline float fatrelu(float threshold, float value) {
  return value <= threshold ? 0.0f : value;
}

template <class T>
struct FirstLayer {
  MatrixRows<T> x;
  MatrixRows<T> gate;
  MatrixRows<T> up;
  const uint8_t* active;
  float threshold;
  int64_t neurons;
  int columns;
};

// gates[i] = fatrelu(gate_i x), or 0 if neuron i is not active.
template <class T>
__global__ void __launch_bounds__(kThreads) gate_rows_kernel(FirstLayer<T> p, float* gates) {
  launch_dependents();
  wait_on_dependencies();
  const int64_t neuron = row_of_warp();
  if (neuron >= p.neurons) {
    return;
  }
  const float gate =
      p.active[neuron] != 0 ? multiply_row(p.gate, neuron, p.x, p.columns) : p.threshold;
  gates[neuron] = fatrelu(p.threshold, gate);
}

// ups[i] = up_i x, or 0 if neuron i is not active, or its gate is 0; gates null: not known.
template <class T>
__global__ void __launch_bounds__(kThreads)
    up_rows_kernel(FirstLayer<T> p, const float* gates, float* ups) {
  launch_dependents();
  wait_on_dependencies();
  const int64_t neuron = row_of_warp();
  if (neuron >= p.neurons) {
    return;
  }
  const bool wanted = p.active[neuron] != 0 && (gates == nullptr || gates[neuron] != 0.0f);
  ups[neuron] = wanted ? multiply_row(p.up, neuron, p.x, p.columns) : 0.0f;
}

// h = gates * ups.
__global__ inline void product_kernel(const float* gates, const float* ups, float* h,
                                      int64_t neurons) {
  launch_dependents();
  wait_on_dependencies();
  const int64_t neuron = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (neuron < neurons) {
    h[neuron] = gates[neuron] * ups[neuron];
  }
}

// All three of them.
template <bool kSkipsZeros, class T>
__global__ void __launch_bounds__(kThreads) fused_rows_kernel(FirstLayer<T> p, float* h) {
  launch_dependents();
  wait_on_dependencies();
  const int64_t neuron = row_of_warp();
  if (neuron >= p.neurons) {
    return;
  }
  float product = 0.0f;
  if (p.active[neuron] != 0) {
    const float gate = fatrelu(p.threshold, multiply_row(p.gate, neuron, p.x, p.columns));
    if (!kSkipsZeros || gate != 0.0f) {
      product = gate * multiply_row(p.up, neuron, p.x, p.columns);
    }
  }
  h[neuron] = product;
}

template <class T>
struct DownLayer {
  MatrixRows<T> down;
  const float* h;
  const uint8_t* active;  // null: rows are skipped where h is 0
  int64_t neurons;
  int columns;

  __device__ bool skips(int64_t neuron) const {
    return active != nullptr ? active[neuron] == 0 : h[neuron] == 0.0f;
  }
};

// sums [blockIdx.y, columns]: of a range of neurons, in a fixed order. A block has the range and
// 256 columns, a warp 32 neurons of it one after the other.
template <class T>
__global__ void __launch_bounds__(kThreads) down_ranges_kernel(DownLayer<T> p, float* sums) {
  __shared__ alignas(16) float of_warps[kWarps][kTileElements];
  launch_dependents();
  wait_on_dependencies();
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t first = int64_t{blockIdx.y} * kRange + warp * kWarpSize;
  const int64_t own = first + threadIdx.x % kWarpSize;
  const bool is_wanted = own < p.neurons && !p.skips(own);
  const float factor_of_own = is_wanted ? p.h[own] : 0.0f;
  const int strip = static_cast<int>(blockIdx.x) * kTileElements;
  const int column = strip + first_column();
  float sum[kPieceElements] = {};
  for (unsigned wanted = __ballot_sync(kAllLanes, is_wanted); wanted != 0; wanted &= wanted - 1) {
    const int i = __ffs(static_cast<int>(wanted)) - 1;
    const float factor = __shfl_sync(kAllLanes, factor_of_own, i);
    float weights[kPieceElements];
    unpack_piece<T>(load_piece(p.down.row(first + i) + column, p.columns - column, p.down.aligned),
                    weights);
#pragma unroll
    for (int j = 0; j < kPieceElements; ++j) {
      sum[j] = fmaf(factor, weights[j], sum[j]);
    }
  }
  store_vector(sum, &of_warps[warp][first_column()]);
  __syncthreads();
  float total = 0.0f;
#pragma unroll
  for (int other = 0; other < kWarps; ++other) {
    total += of_warps[other][threadIdx.x];
  }
  const int own_column = strip + static_cast<int>(threadIdx.x);
  if (own_column < p.columns) {
    sums[int64_t{blockIdx.y} * p.columns + own_column] = total;
  }
}

// A warp adds its row of down, times h, to sums [columns], which are 0 before.
template <class T>
__global__ void __launch_bounds__(kThreads) down_atomics_kernel(DownLayer<T> p, float* sums) {
  launch_dependents();
  wait_on_dependencies();
  const int64_t neuron = row_of_warp();
  if (neuron >= p.neurons || p.skips(neuron)) {
    return;
  }
  const float factor = p.h[neuron];
#pragma unroll 4
  for (int column = first_column(); column < p.columns; column += kTileElements) {
    float weights[kPieceElements];
    unpack_piece<T>(load_piece(p.down.row(neuron) + column, p.columns - column, p.down.aligned),
                    weights);
#pragma unroll
    for (int i = 0; i < kPieceElements; ++i) {
      if (column + i < p.columns) {
        atomicAdd(sums + column + i, factor * weights[i]);
      }
    }
  }
}

__global__ inline void clear_kernel(float* sums, int columns) {
  launch_dependents();
  wait_on_dependencies();
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (column < columns) {
    sums[column] = 0.0f;
  }
}

// y = the sums of the ranges, one after the other.
template <class T>
__global__ void add_up_kernel(const float* sums, int ranges, int columns, T* y) {
  launch_dependents();
  wait_on_dependencies();
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (column >= columns) {
    return;
  }
  float sum = 0.0f;
#pragma unroll 4
  for (int range = 0; range < ranges; ++range) {
    sum += sums[int64_t{range} * columns + column];
  }
  y[column] = from_f32<T>(sum);
}

}  // namespace sparsellm::mlp_ablation
