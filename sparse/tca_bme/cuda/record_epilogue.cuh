#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

// What becomes of the sums of a product of records, lane by lane as mma.m16n8k16 leaves them.
namespace sparsellm::tca_bme {

template <class T>
__device__ inline T from_float(float v) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half(v);
  } else {
    return __float2bfloat16(v);
  }
}

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
      const float add = bias != nullptr ? static_cast<float>(bias[r]) : 0.f;
      const float low = p.relu ? 0.f : -INFINITY;
      T* const y = static_cast<T*>(p.y) + token * p.y_stride + r;
      const float a = (h ? v.z : v.x) + add;
      const float b = (h ? v.w : v.y) + add;
      if (token < p.tokens) {
        y[0] = from_float<T>(a < low ? low : a);
      }
      if (token + 1 < p.tokens) {
        y[p.y_stride] = from_float<T>(b < low ? low : b);
      }
    }
  }
}

}  // namespace sparsellm::tca_bme
