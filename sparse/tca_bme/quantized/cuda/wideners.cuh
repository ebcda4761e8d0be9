#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "sparse/tca_bme/quantized/cuda/dense_tile.cuh"
#include "sparse/tca_bme/quantized/cuda/nibble_factor.cuh"
#include "sparse/tca_bme/quantized/cuda/nibble_scales.cuh"
#include "sparse/tca_bme/quantized/cuda/quantized_tile.cuh"

// Values of records become pairs of f16 or bf16, of neighbouring columns: what the kernels multiply
// and expand that do not compute in integers. A widener calls take(i, j, pairs) for the tiles j of
// each chunk i of half a record (decode_half_of_bytes()), with pairs[2 h + q] of unit (j, q, h).
namespace sparsellm::tca_bme {

__device__ inline uint32_t upper_halves(float low, float high) {
  return permute(__float_as_uint(low), __float_as_uint(high), 0x7632);
}

// 0x4B000000 is 2^23 of f32, with steps of 1: a byte in its last bits adds itself.
__device__ inline float float_of_byte(uint32_t bytes, uint32_t k, float less) {
  return __uint_as_float(permute(bytes, 0x4B000000u, 0x7440 + k)) - less;
}

// Values of 8 bits without an error, and without the scales of their rows and the factor kFactor.
template <class T, QuantizedLayout::Values VALUES, int OFFSETS>
class ByteWidener {
 public:
  using Element = T;
  static constexpr bool kLacksScales = true;
#if __CUDA_ARCH__ >= 890
  static constexpr float kFactor = 1.f;
#else
  static constexpr float kFactor = VALUES == QuantizedLayout::Values::f8 ? 256.f : 1.f;
#endif

  __device__ ByteWidener(int lane, int /*group*/) : decoder_(lane) {}

  template <class Take>
  __device__ void decode_half(uint32_t base, int half, Take take) const {
    decode_half_of_bytes(base, decoder_, half, [&](int i, int j, const uint32_t(&bytes)[4]) {
      uint32_t pairs[4][2];
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        widen(bytes[u], pairs[u]);
      }
      take(i, j, pairs);
    });
  }

  // A unit of four columns.
  __device__ static void widen(uint32_t bytes, uint32_t (&pair)[2]) {
    if constexpr (VALUES == QuantizedLayout::Values::f8) {
      // Without the conversion: the bits of e4m3 in those of f16 are 1 / 256 of the value,
      // subnormal ones too.
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#if __CUDA_ARCH__ >= 890
        const uint16_t two_bytes = static_cast<uint16_t>(i == 0 ? bytes : bytes >> 16);
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair[i]) : "h"(two_bytes));
#else
        const uint32_t high = permute(bytes, 0, i == 0 ? 0x1404 : 0x3424);
        pair[i] = (high & 0x80008000u) | ((high & 0x7f007f00u) >> 1);
#endif
        if constexpr (!std::is_same_v<T, __half>) {
          __half2 two;
          memcpy(&two, &pair[i], sizeof two);
          pair[i] = upper_halves(__low2float(two), __high2float(two));
        }
      }
    } else {
      const uint32_t excess = bytes ^ 0x80808080u;  // value + 128
      if constexpr (std::is_same_v<T, __half>) {
        pair[0] = half_pair_of_bytes(excess, 0, 0xE480E480u);  // - 1152
        pair[1] = half_pair_of_bytes(excess, 1, 0xE480E480u);
      } else {
        float v[4];
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k) {
          v[k] = float_of_byte(excess, k, 8388736.f);  // 2^23 + 128
        }
        pair[0] = upper_halves(v[0], v[1]);  // no bit is lost: 8 are significant
        pair[1] = upper_halves(v[2], v[3]);
      }
    }
  }

 private:
  QuantizedDecoder<OFFSETS> decoder_;
};

// Values of 4 bits with their scales, rounded to T.
template <class T, int OFFSETS>
class NibbleWidener {
 public:
  using Element = T;
  static constexpr bool kLacksScales = false;
  static constexpr float kFactor = 1.f;

  __device__ NibbleWidener(int lane, int group) : decoder_(lane, group), scales_(lane, group) {}

  template <class Take>
  __device__ void decode_half(uint32_t base, int half, Take take) const {
    __half2 scales[4];
    decode_half_of_nibbles(base, decoder_, half, [&](int i, int j, const uint32_t(&bytes)[4]) {
      const int columns32 = kHalfChunks / 2 * half + i / 2;
      if (j == 0 && (i == 0 || (i % 2 == 0 && scales_.begins_group(columns32)))) {
        scales_.load(scales, base, columns32);
      }
      const __half2 of_rows = scales[2 * (i & 1) + j];
      const NibbleFactor<T> factors[2] = {NibbleFactor<T>(__low2half(of_rows)),
                                          NibbleFactor<T>(__high2half(of_rows))};
      uint32_t pairs[4][2];
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        factors[u % 2].widen(bytes[u], pairs[u]);
      }
      take(i, j, pairs);
    });
  }

 private:
  NibbleDecoder<OFFSETS> decoder_;
  NibbleScales<OFFSETS> scales_;
};

}  // namespace sparsellm::tca_bme
