#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "sparse/tca_bme/quantized/cuda/nibble_scales.cuh"

namespace sparsellm::tca_bme {

// 0x6400 is 1024 of f16, with steps of 1: a byte in its last bits adds itself.
__device__ inline uint32_t half_pair_of_bytes(uint32_t bytes, int pair, uint32_t less) {
  const uint32_t sum = permute(bytes, 0x64646464u, pair == 0 ? 0x4140 : 0x4342);
  uint32_t result;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(sum), "r"(less));
  return result;
}

// The scale of a group of i4: makes of four bytes, each a code that is 8 too large, two pairs of T,
// rounded once.
template <class T>
class NibbleFactor;

template <>
class NibbleFactor<__half> {
 public:
  __device__ explicit NibbleFactor(__half scale) : scale_(__half2half2(scale)) {}
  __device__ void widen(uint32_t bytes, uint32_t (&pairs)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t code = half_pair_of_bytes(bytes, i, 0xE408E408u);  // - 1032
      pairs[i] = bits_of(__hmul2(half2_of(code), scale_));
    }
  }

 private:
  __half2 scale_;
};

// A scale has more bits than bf16: it is the sum of two. Products with the lower one are exact.
template <>
class NibbleFactor<__nv_bfloat16> {
 public:
  __device__ explicit NibbleFactor(__half scale) {
    const float exact = __half2float(scale);
    const __nv_bfloat16 upper = __float2bfloat16_rn(exact);
    upper_ = __bfloat162bfloat162(upper);
    lower_ = __float2bfloat162_rn(exact - __bfloat162float(upper));
  }
  __device__ void widen(uint32_t bytes, uint32_t (&pairs)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // 0x4300 is 128, with steps of 1.
      const uint32_t bits = permute(bytes, 0x43434343u, i == 0 ? 0x4140 : 0x4342);
      __nv_bfloat162 two;
      memcpy(&two, &bits, sizeof two);
      two = __hsub2(two, __float2bfloat162_rn(128.f + 8.f));
      two = __hfma2(two, upper_, __hmul2(two, lower_));
      memcpy(&pairs[i], &two, sizeof two);
    }
  }

 private:
  __nv_bfloat162 upper_, lower_;
};

}  // namespace sparsellm::tca_bme
