#pragma once

#include "kernels/base/warp.cuh"
#include "kernels/device/cuda_types.cuh"
#include "kernels/device/rotation.cuh"

// A head of q or k in the registers of a warp, between its load and its store: for norms of heads
// (HeadNorms in kernels/kv_append.h), which need all of it. The same bits in every kernel, however
// many pairs a lane has room for, whatever the compiler makes of its products and sums.
namespace sparsellm {

// Lane l has the elements i and half + i, which RoPE rotates together, for i = l + 32 * n; 0 for
// those that there are not.
template <int kPairs, class T>
struct WarpHead {
  T low[kPairs];
  T high[kPairs];
};

// half: of head_dim, at most 32 * kPairs.
template <int kPairs, class T>
__device__ WarpHead<kPairs, T> load_head(const T* head, int half) {
  WarpHead<kPairs, T> x;
#pragma unroll
  for (int n = 0; n < kPairs; ++n) {
    const int i = static_cast<int>(threadIdx.x) % kWarpSize + n * kWarpSize;
    x.low[n] = i < half ? head[i] : from_f32<T>(0.0f);
    x.high[n] = i < half ? head[half + i] : from_f32<T>(0.0f);
  }
  return x;
}

template <int kPairs, class From, class T>
__device__ void store_head(const WarpHead<kPairs, From>& x, int half, T* head) {
#pragma unroll
  for (int n = 0; n < kPairs; ++n) {
    const int i = static_cast<int>(threadIdx.x) % kWarpSize + n * kWarpSize;
    if (i < half) {
      head[i] = from_f32<T>(f32_of(x.low[n]));
      head[half + i] = from_f32<T>(f32_of(x.high[n]));
    }
  }
}

// RMSNorm, in f32.
template <int kPairs, class T>
__device__ WarpHead<kPairs, float> normalised(const WarpHead<kPairs, T>& x,
                                              const WarpHead<kPairs, T>& weight, int half,
                                              float epsilon) {
  float squares = 0.0f;
#pragma unroll
  for (int n = 0; n < kPairs; ++n) {
    squares = __fmaf_rn(f32_of(x.low[n]), f32_of(x.low[n]), squares);
    squares = __fmaf_rn(f32_of(x.high[n]), f32_of(x.high[n]), squares);
  }
  const float mean = __fdiv_rn(warp_sum(squares), static_cast<float>(2 * half));
  const float scale = __frsqrt_rn(__fadd_rn(mean, epsilon));
  WarpHead<kPairs, float> y;
#pragma unroll
  for (int n = 0; n < kPairs; ++n) {
    y.low[n] = __fmul_rn(__fmul_rn(f32_of(x.low[n]), scale), f32_of(weight.low[n]));
    y.high[n] = __fmul_rn(__fmul_rn(f32_of(x.high[n]), scale), f32_of(weight.high[n]));
  }
  return y;
}

// angles: a row of cos_sin (rope_angles() in kernels/rope.h), cosines and sines, as loaded.
template <int kPairs>
__device__ void rotate_head(WarpHead<kPairs, float>& x, const WarpHead<kPairs, float>& angles) {
#pragma unroll
  for (int n = 0; n < kPairs; ++n) {
    const Rotated both = rotate(x.low[n], x.high[n], angles.low[n], angles.high[n]);
    x.low[n] = both.low;
    x.high[n] = both.high;
  }
}

}  // namespace sparsellm
