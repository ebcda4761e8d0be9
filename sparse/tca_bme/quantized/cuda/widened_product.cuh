#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/device/mma.cuh"
#include "sparse/tca_bme/quantized/cuda/byte_product.cuh"
#include "sparse/tca_bme/quantized/cuda/quantized_tile.cuh"

namespace sparsellm::tca_bme {

// The values of four bytes, exactly, as pairs of T: pair[0] of bytes 0 and 1. What a pair lacks is
// the factor kWidenedFactor.
template <QuantizedLayout::Values VALUES>
constexpr float kWidenedFactor = VALUES == QuantizedLayout::Values::f8 ? 256.f : 1.f;

__device__ inline uint32_t upper_halves(float low, float high) {
  return permute(__float_as_uint(low), __float_as_uint(high), 0x7632);
}

template <class T, QuantizedLayout::Values VALUES>
__device__ inline void widen(uint32_t bytes, uint32_t (&pair)[2]) {
  if constexpr (VALUES == QuantizedLayout::Values::i8) {
    const uint32_t excess = bytes ^ 0x80808080u;  // value + 128
    if constexpr (std::is_same_v<T, __half>) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // 0x6400 is 1024, with steps of 1
        const uint32_t sum = permute(excess, 0x64646464u, i == 0 ? 0x4140 : 0x4342);
        asm("add.rn.f16x2 %0, %1, %2;" : "=r"(pair[i]) : "r"(sum), "r"(0xE480E480u));  // - 1152
      }
    } else {
      float v[4];
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) {  // 0x4B000000 is 2^23, with steps of 1
        v[k] = __uint_as_float(permute(excess, 0x4B000000u, 0x7440 + k)) - 8388736.f;
      }
      pair[0] = upper_halves(v[0], v[1]);  // no bit is lost: 8 are significant
      pair[1] = upper_halves(v[2], v[3]);
    }
  } else {
    // The bits of e4m3 in those of f16 are 1 / 256 of the value, subnormal ones too.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t high = permute(bytes, 0, i == 0 ? 0x1404 : 0x3424);
      pair[i] = (high & 0x80008000u) | ((high & 0x7f007f00u) >> 1);
      if constexpr (!std::is_same_v<T, __half>) {
        __half2 two;
        memcpy(&two, &pair[i], sizeof two);
        pair[i] = upper_halves(__low2float(two), __high2float(two));
      }
    }
  }
}

// The product of a record of 8-bit values, which become f16 or bf16 without an error (PRODUCT of
// record_matmul_kernel). The four columns of a unit are two pairs of the operand; x is loaded
// accordingly. NT: tiles of 8 tokens.
template <class T, QuantizedLayout::Values VALUES, int OFFSETS, int NT>
class WidenedProduct {
 public:
  using Element = T;
  static constexpr int kRecordColumns = QuantizedLayout::kColumns;
  static constexpr int kTokens = 8 * NT;
  static constexpr int kXPadding = 32;
  static constexpr bool kPreparesX = false;
  static constexpr int kFragments = 4 * NT;
  static constexpr int kMaxThreads = NT <= 2 ? 512 : NT == 4 ? 384 : 256;

  __device__ WidenedProduct(int lane, uint32_t x, uint32_t pitch)
      : decoder_(lane), x_(x + (lane >> 2) * pitch + (lane & 3) * 8), pitch_(pitch) {}

  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          sums_[m][n][c] = 0.f;
        }
      }
    }
  }
  __device__ void multiply(uint32_t base, int k) {
    const uint32_t x = x_ + k * (kRecordColumns * 2);
    uint2 b[NT][2];
    decode_bytes(base, decoder_, [&](int c, int j, const uint32_t(&bytes)[4]) {
      if (j == 0 && c % 2 == 0) {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            b[n][h] = load_shared2(x + n * 8 * pitch_ + c / 2 * 64 + h * 32);
          }
        }
      }
      uint32_t pairs[4][2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        widen<T, VALUES>(bytes[i], pairs[i]);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t a[4] = {pairs[2 * h][0], pairs[2 * h + 1][0], pairs[2 * h][1],
                               pairs[2 * h + 1][1]};
#pragma unroll
        for (int n = 0; n < NT; ++n) {
          mma<T>(sums_[2 * (c & 1) + j][n], a, b[n][h].x, b[n][h].y);
        }
      }
    });
  }
  __device__ void finish() {}
  __device__ float4 fragment(int f) const {
    const float(&v)[4] = sums_[f / NT][f % NT];
    return make_float4(v[0], v[1], v[2], v[3]);
  }
  template <class Parameters>
  __device__ static void store(const Parameters& p, int first_row, int f, int lane, float4 sums) {
    constexpr float kFactor = kWidenedFactor<VALUES>;
    store_scaled_fragment<T>(
        p, first_row + f / NT * 16, f % NT * 8, lane,
        make_float4(sums.x * kFactor, sums.y * kFactor, sums.z * kFactor, sums.w * kFactor));
  }

 private:
  __device__ static uint2 load_shared2(uint32_t a) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(a) : "memory");
    return v;
  }

  QuantizedDecoder<OFFSETS> decoder_;
  uint32_t x_;
  uint32_t pitch_;
  float sums_[4][NT][4];
};

}  // namespace sparsellm::tca_bme
