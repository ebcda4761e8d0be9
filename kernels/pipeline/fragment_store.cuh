#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/device/cuda_types.cuh"

// What becomes of the sums of a product with a weight, lane by lane as mma.m16n8k16 leaves them.
namespace sparsellm {

__device__ inline void add(float4& sum, float4 v) {
  sum.x += v.x;
  sum.y += v.y;
  sum.z += v.z;
  sum.w += v.w;
}

// Stores the values of one fragment of a tile, 16 rows x 8 tokens, with the bias and ReLU. Of the
// kernel's parameters it takes y, y_stride, bias, relu, rows and tokens.
template <class T, class Parameters>
__device__ inline void store_fragment(const Parameters& p, int first_row, int first_token, int lane,
                                      float4 v) {
  const int row = first_row + (lane >> 2);
  const int token = first_token + 2 * (lane & 3);
  const T* const bias = static_cast<const T*>(p.bias);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = row + 8 * h;
    if (r < p.rows) {
      const float add = bias != nullptr ? f32_of(bias[r]) : 0.f;
      const float low = p.relu ? 0.f : -INFINITY;
      T* const y = static_cast<T*>(p.y) + token * p.y_stride + r;
      const float a = (h ? v.z : v.x) + add;
      const float b = (h ? v.w : v.y) + add;
      if (token < p.tokens) {
        y[0] = from_f32<T>(a < low ? low : a);
      }
      if (token + 1 < p.tokens) {
        y[p.y_stride] = from_f32<T>(b < low ? low : b);
      }
    }
  }
}

}  // namespace sparsellm
