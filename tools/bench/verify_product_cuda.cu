#include <algorithm>
#include <cfloat>

#include "kernels/base/launch.cuh"
#include "kernels/base/warp.cuh"
#include "kernels/device/cuda_types.cuh"
#include "tools/bench/verify_product.h"
#include "tools/bench/verify_product_device.h"

namespace sparsellm {
namespace {

constexpr int kThreads = 256;
constexpr int kSide = 16;      // a block's threads form a square
constexpr int kPerThread = 4;  // results of a thread in each direction
constexpr int kTile = kSide * kPerThread;
constexpr int kSlice = 16;         // columns of w and x in shared memory at a time
constexpr int kPitch = kTile + 1;  // so that the stores of a warp fall into different banks
constexpr int64_t kMaxErrorBlocks = 2048;

// Rows [begin, begin + kTile) and columns [column, column + kSlice) of a row-major [rows, columns],
// transposed; zeros beyond the edges.
template <class T>
__device__ void load_slice(const T* matrix, int64_t rows, int64_t columns, int64_t begin,
                           int64_t column, double (&slice)[kSlice][kPitch]) {
  for (int i = threadIdx.x; i < kTile * kSlice; i += kThreads) {
    const int64_t r = begin + i / kSlice;
    const int64_t c = column + i % kSlice;
    const float value = r < rows && c < columns ? f32_of(matrix[r * columns + c]) : 0.0f;
    slice[i % kSlice][i / kSlice] = static_cast<double>(value);
  }
}

// Block (b, t) of kThreads computes the outputs from b * kTile on for the tokens from t * kTile on;
// thread (i, j) = (threadIdx.x % kSide, threadIdx.x / kSide) of it those at i + kSide * p, for the
// tokens at j + kSide * q, p, q < kPerThread. A sum runs over the columns in ascending order.
// Static shared memory of 2 * kSlice * kPitch doubles, 16 KiB; 40 doubles of sums in registers.
template <class T>
__global__ void __launch_bounds__(kThreads)
    product_reference_kernel(const T* x, const T* w, int64_t tokens, int64_t out, int64_t in,
                             float* values, float* magnitudes, float* all_weight_sums,
                             float* all_largest_inputs) {
  __shared__ double w_slice[kSlice][kPitch];
  __shared__ double x_slice[kSlice][kPitch];
  const int i = threadIdx.x % kSide;
  const int j = threadIdx.x / kSide;
  const int64_t first_out = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t first_token = static_cast<int64_t>(blockIdx.y) * kTile;
  double sums[kPerThread][kPerThread] = {};
  double magnitude_sums[kPerThread][kPerThread] = {};
  double weight_sums[kPerThread] = {};
  double largest_inputs[kPerThread] = {};
  for (int64_t column = 0; column < in; column += kSlice) {
    load_slice(w, out, in, first_out, column, w_slice);
    load_slice(x, tokens, in, first_token, column, x_slice);
    __syncthreads();
    for (int k = 0; k < kSlice; ++k) {
      double w_values[kPerThread];
      double x_values[kPerThread];
#pragma unroll
      for (int p = 0; p < kPerThread; ++p) {
        w_values[p] = w_slice[k][i + kSide * p];
        x_values[p] = x_slice[k][j + kSide * p];
        weight_sums[p] += fabs(w_values[p]);
        largest_inputs[p] = fmax(largest_inputs[p], fabs(x_values[p]));
      }
#pragma unroll
      for (int p = 0; p < kPerThread; ++p) {
#pragma unroll
        for (int q = 0; q < kPerThread; ++q) {
          sums[p][q] += w_values[p] * x_values[q];
          magnitude_sums[p][q] += fabs(w_values[p]) * fabs(x_values[q]);
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int p = 0; p < kPerThread; ++p) {
#pragma unroll
    for (int q = 0; q < kPerThread; ++q) {
      const int64_t o = first_out + i + kSide * p;
      const int64_t token = first_token + j + kSide * q;
      if (o < out && token < tokens) {
        values[token * out + o] = static_cast<float>(sums[p][q]);
        magnitudes[token * out + o] = static_cast<float>(magnitude_sums[p][q]);
        all_weight_sums[o] = static_cast<float>(weight_sums[p]);  // all blocks store the same
        all_largest_inputs[token] = static_cast<float>(largest_inputs[q]);
      }
    }
  }
}

// Puts the largest |y - value| / tolerance of `count` elements into worst, which holds 0 or more:
// such floats are in the order of their bits. A thread takes the elements of its index and every
// gridDim.x * kThreads-th after it.
template <class T>
__global__ void __launch_bounds__(kThreads)
    product_error_kernel(const T* y, const float* values, const float* magnitudes,
                         const float* weight_sums, const float* largest_inputs,
                         float input_rounding, int64_t out, int64_t count, Rounding rounding,
                         unsigned* worst) {
  constexpr unsigned kInfinity = 0x7f800000u;
  unsigned most = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += stride) {
    const float in_inputs = input_rounding * weight_sums[i % out] * largest_inputs[i / out];
    const float in_sum = kSumTolerance * magnitudes[i] + in_inputs;
    const float tolerance =
        in_sum + rounding.relative * (fabsf(values[i]) + in_sum) + rounding.absolute;
    const float ratio = fabsf(f32_of(y[i]) - values[i]) / tolerance;
    // A comparison with NaN is false.
    most = max(most, ratio <= FLT_MAX ? __float_as_uint(ratio) : kInfinity);
  }
  most = __reduce_max_sync(0xffffffffu, most);
  if (threadIdx.x % kWarpSize == 0) {
    atomicMax(worst, most);
  }
}

unsigned blocks_for(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

}  // namespace

void product_reference_cuda(const Tensor& x, const Tensor& w, const ProductSums& sums,
                            ExecContext& ctx) {
  const int64_t tokens = x.size(0);
  const int64_t out = w.size(0);
  constexpr int64_t kMaxBlockRows = 65535;  // of a grid
  require(tokens <= kMaxBlockRows * kTile, "the reference of a product of {} tokens", tokens);
  visit_activation(x.dtype(), [&]<class T>(T) {
    launch(ctx, product_reference_kernel<T>,
           {.blocks = dim3(blocks_for(out, kTile), blocks_for(tokens, kTile)), .threads = kThreads},
           static_cast<const T*>(x.raw()), static_cast<const T*>(w.raw()), tokens, out, x.size(1),
           sums.values.data<float>(), sums.magnitudes.data<float>(), sums.weight_sums.data<float>(),
           sums.largest_inputs.data<float>());
  });
}

double product_error_cuda(const Tensor& y, const ProductSums& sums, double input_rounding,
                          const Tensor& worst, ExecContext& ctx) {
  auto* const most = worst.data<float>();
  check_cuda(cudaMemsetAsync(most, 0, sizeof(float), cuda_queue(ctx).stream));
  const int64_t count = y.element_count();
  visit_activation(y.dtype(), [&]<class T>(T) {
    launch(ctx, product_error_kernel<T>,
           {.blocks = static_cast<unsigned>(
                std::min<int64_t>(blocks_for(count, kThreads), kMaxErrorBlocks)),
            .threads = kThreads},
           static_cast<const T*>(y.raw()), sums.values.data<float>(), sums.magnitudes.data<float>(),
           sums.weight_sums.data<float>(), sums.largest_inputs.data<float>(),
           static_cast<float>(input_rounding), y.size(1), count, rounding_of(y.dtype()),
           reinterpret_cast<unsigned*>(most));
  });
  float result = 0.0f;
  ctx.cuda->copy(&result, most, sizeof(result));
  return static_cast<double>(result);
}

void poison_cuda(const Tensor& y, ExecContext& ctx) {
  check_cuda(
      cudaMemsetAsync(y.raw(), kPoison, static_cast<size_t>(y.bytes()), cuda_queue(ctx).stream));
}

}  // namespace sparsellm
