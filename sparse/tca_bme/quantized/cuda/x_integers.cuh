#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/device/cuda_types.cuh"
#include "sparse/tca_bme/cuda/record_matmul_cuda.h"
#include "sparse/tca_bme/cuda/record_tile.cuh"

// How x becomes integers of 16 bits, a high and a low byte, in blocks of columns with a scale each.
namespace sparsellm::tca_bme {

// Columns of x that share a scale. The sum of 512 products of an 8-bit and a 16-bit integer fits
// 32 bits.
constexpr int kXBlock = 512;
// The integer that the largest magnitude of a block becomes.
constexpr float kLargestX = 32512.f;  // 127 * 256
static_assert(0.5 / kLargestX == kRecordInputRounding);

// A block of x that is not larger than this counts as zeros: its steps would have no reciprocal.
constexpr float kTiny = 1e-30f;

// Of the largest magnitude of a block: what x is multiplied by, and what its integers are. Of what
// is not finite, 0 and a NaN.
__device__ inline float steps_of(float largest) {
  float inverse;  // also where it is subnormal
  asm("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(largest));
  return largest > kTiny ? kLargestX * inverse : 0.f;
}
__device__ inline float scale_of(float largest) {
  return largest <= kTiny ? 0.f : largest * (1.f / kLargestX) + (largest - largest);
}

template <class T>
__device__ inline float element_of(uint32_t bits) {
  T x;
  const uint16_t half = static_cast<uint16_t>(bits);
  memcpy(&x, &half, sizeof x);
  return f32_of(x);
}
// Of a warp. As integers, the magnitudes of floats have their order, and a NaN is the largest.
template <class T>
__device__ inline float largest_magnitude(const uint32_t (&pairs)[8]) {
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    most = __vmaxu2(most, pairs[i] & 0x7fff7fffu);
  }
  return element_of<T>(__reduce_max_sync(~0u, max(most & 0xffffu, most >> 16)));
}
// x of four columns in steps, 256 high + low, both from -128 to 127. Added to kShift, a number
// leaves its nearest integer in the low bits, plus the 128 that round the high byte.
template <class T>
__device__ inline void split(uint32_t first, uint32_t second, float steps, uint32_t& high,
                             uint32_t& low) {
  constexpr float kShift = 0x1.8p23f + 128.f;
  uint32_t q[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t pair = i < 2 ? first : second;
    const float x = element_of<T>(i % 2 == 0 ? pair & 0xffffu : pair >> 16);
    q[i] = __float_as_uint(__fmaf_rn(x, steps, kShift));
  }
  const uint32_t lower = permute(q[0], q[1], 0x5410);
  const uint32_t upper = permute(q[2], q[3], 0x5410);
  low = permute(lower, upper, 0x6420) ^ 0x80808080u;  // takes the 128 away again
  high = permute(lower, upper, 0x7531);
}
// The same of 16 columns.
template <class T>
__device__ inline void split(const uint32_t (&pairs)[8], float steps, uint32_t (&high)[4],
                             uint32_t (&low)[4]) {
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    split<T>(pairs[2 * w], pairs[2 * w + 1], steps, high[w], low[w]);
  }
}

}  // namespace sparsellm::tca_bme
