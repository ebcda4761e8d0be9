#include <algorithm>
#include <cstdint>

#include "kernels/base/launch.cuh"
#include "kernels/base/pdl.cuh"
#include "kernels/base/warp.cuh"
#include "kernels/device/cuda_types.cuh"
#include "kernels/norm_device.h"

namespace sparsellm {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kVector = 4;  // elements that a thread loads at once, where rows are aligned
constexpr int kMaxWarps = kMaxThreads / kWarpSize;

template <class T>
struct Norm {
  const T* delta;  // null: nothing to add
  int64_t delta_stride;
  float* x;
  int64_t x_stride;
  const T* weight;
  const T* bias;  // null: none
  T* y;
  int64_t y_stride;
  int features;
  float epsilon;
  float scale;
  float delta_scale;
};

// The sum over a block of whole warps; every thread gets it. `shared` may be used again after the
// next __syncthreads().
__device__ float sum_over_block(float x, float* shared) {
  x = warp_sum(x);
  if (threadIdx.x % kWarpSize == 0) {
    shared[threadIdx.x / kWarpSize] = x;
  }
  __syncthreads();
  float total = 0.0f;
  for (unsigned warp = 0; warp < blockDim.x / kWarpSize; ++warp) {
    total += shared[warp];
  }
  return total;
}

// One block per row. Thread t has the elements [kWidth * (t + i * threads), + kWidth) of it, for
// i < kParts, in registers, so that the row is read from memory once.
template <bool kCentred, int kParts, int kWidth, class T>
__global__ void __launch_bounds__(kMaxThreads) norm_kernel(Norm<T> norm) {
  launch_dependents();
  __shared__ float sums[2][kMaxWarps];
  float* x = norm.x + blockIdx.x * norm.x_stride;
  const int first = static_cast<int>(threadIdx.x) * kWidth;
  const int step = static_cast<int>(blockDim.x) * kWidth;
  // Parameters do not depend on the kernel before: they are there when it has ended, as far as
  // there are registers for them.
  constexpr int kEarly = kParts <= 4 ? kParts : 0;
  Vector<T, kWidth> weights[kParts];
  Vector<T, kWidth> biases[kParts];
  const auto load_parameters = [&](int i) {
    const int at = first + i * step;
    if (at < norm.features) {
      weights[i] = *reinterpret_cast<const Vector<T, kWidth>*>(norm.weight + at);
      if (norm.bias != nullptr) {
        biases[i] = *reinterpret_cast<const Vector<T, kWidth>*>(norm.bias + at);
      }
    }
  };
#pragma unroll
  for (int i = 0; i < kEarly; ++i) {
    load_parameters(i);
  }
  wait_on_dependencies();
  float values[kParts][kWidth];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int at = first + i * step;
    if (at < norm.features) {
      load_vector(x + at, values[i]);
      if (norm.delta != nullptr) {
        float delta[kWidth];
        load_vector(norm.delta + blockIdx.x * norm.delta_stride + at, delta);
        for (int j = 0; j < kWidth; ++j) {
          values[i][j] = fmaf(delta[j], norm.delta_scale, values[i][j]);
        }
        store_vector(values[i], x + at);
      }
      for (int j = 0; j < kWidth; ++j) {
        sum += values[i][j];
      }
    }
  }
  const float count = static_cast<float>(norm.features);
  const float mean = kCentred ? sum_over_block(sum, sums[0]) / count : 0.0f;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    if (first + i * step < norm.features) {
      for (int j = 0; j < kWidth; ++j) {
        const float distance = values[i][j] - mean;
        squares += distance * distance;
      }
    }
  }
  const float scale = norm.scale / sqrtf(sum_over_block(squares, sums[1]) / count + norm.epsilon);
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int at = first + i * step;
    if (i >= kEarly) {
      load_parameters(i);
    }
    if (at < norm.features) {
      for (int j = 0; j < kWidth; ++j) {
        const float bias = norm.bias == nullptr ? 0.0f : f32_of(biases[i].elements[j]);
        values[i][j] = (values[i][j] - mean) * scale * f32_of(weights[i].elements[j]) + bias;
      }
      store_vector(values[i], norm.y + blockIdx.x * norm.y_stride + at);
    }
  }
}

template <bool kCentred, int kParts, int kWidth, class T>
void start(const Norm<T>& norm, const LaunchShape& shape, ExecContext& ctx) {
  launch(ctx, norm_kernel<kCentred, kParts, kWidth, T>, shape, norm);
}

template <bool kCentred, class T>
void start(const Norm<T>& norm, int64_t rows, int64_t vector, ExecContext& ctx) {
  const int64_t vectors = norm.features / vector;
  const int64_t threads =
      std::clamp<int64_t>((vectors + kWarpSize - 1) / kWarpSize * kWarpSize, 128, kMaxThreads);
  const LaunchShape shape{.blocks = static_cast<unsigned>(rows),
                          .threads = static_cast<unsigned>(threads),
                          .shared_bytes = 0,
                          .pdl = true};
  const int64_t parts = (vectors + threads - 1) / threads;
  if (vector == 1) {
    require(parts <= 32, "norm: {} features are more than {}", norm.features, 32 * kMaxThreads);
    return parts <= 8 ? start<kCentred, 8, 1>(norm, shape, ctx)
                      : start<kCentred, 32, 1>(norm, shape, ctx);
  }
  require(parts <= 8, "norm: {} features are more than {}", norm.features,
          8 * kVector * kMaxThreads);
  if (parts <= 1) {
    start<kCentred, 1, kVector>(norm, shape, ctx);
  } else if (parts <= 2) {
    start<kCentred, 2, kVector>(norm, shape, ctx);
  } else if (parts <= 4) {
    start<kCentred, 4, kVector>(norm, shape, ctx);
  } else {
    start<kCentred, 8, kVector>(norm, shape, ctx);
  }
}

// Rows that all start at addresses of whole vectors.
bool aligned(const Tensor& x, int64_t vector) {
  const int64_t bytes = vector * size_of(x.dtype());
  return x.empty() || (reinterpret_cast<uintptr_t>(x.raw()) % static_cast<uintptr_t>(bytes) == 0 &&
                       (x.rank() == 1 || x.row_stride() % vector == 0));
}

void check_dtype(std::string_view what, const Tensor& parameter, const Tensor& y) {
  require(parameter.empty() || parameter.dtype() == y.dtype(),
          "norm: {} and y are {} and {}; on CUDA they have one dtype", what,
          name_of(parameter.dtype()), name_of(y.dtype()));
}

template <bool kCentred>
void run_norm(const Tensor& delta, const Tensor& x, const NormParams& params, const Tensor& y,
              ExecContext& ctx) {
  check_dtype("weight", params.weight, y);
  check_dtype("bias", params.bias, y);
  check_dtype("delta", delta, y);
  const bool vectors = x.size(1) % kVector == 0 && aligned(delta, kVector) && aligned(x, kVector) &&
                       aligned(params.weight, kVector) && aligned(params.bias, kVector) &&
                       aligned(y, kVector);
  visit_activation(y.dtype(), [&]<class T>(T) {
    const Norm<T> norm{.delta = static_cast<const T*>(delta.raw()),
                       .delta_stride = delta.row_stride(),
                       .x = static_cast<float*>(x.raw()),
                       .x_stride = x.row_stride(),
                       .weight = static_cast<const T*>(params.weight.raw()),
                       .bias = static_cast<const T*>(params.bias.raw()),
                       .y = static_cast<T*>(y.raw()),
                       .y_stride = y.row_stride(),
                       .features = static_cast<int>(x.size(1)),
                       .epsilon = params.epsilon,
                       .scale = params.scale,
                       .delta_scale = params.delta_scale};
    start<kCentred>(norm, x.size(0), vectors ? kVector : 1, ctx);
  });
}

}  // namespace

void layer_norm_cuda(const Tensor& delta, const Tensor& x, const NormParams& params,
                     const Tensor& y, ExecContext& ctx) {
  run_norm<true>(delta, x, params, y, ctx);
}

void rms_norm_cuda(const Tensor& delta, const Tensor& x, const NormParams& params, const Tensor& y,
                   ExecContext& ctx) {
  run_norm<false>(delta, x, params, y, ctx);
}

}  // namespace sparsellm
