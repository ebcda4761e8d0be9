#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace sparsellm::fused {

// Of eight elements of f16 or bf16, in the order of memory: a byte for each, 0xff or 0.
struct SignMasks {
  uint32_t nonzero[2];
  uint32_t negative[2];  // the sign bit; of zeros, too
  bool finite;           // all of them
};

// The sign bits of four bytes, each copied to all bits of a byte (PTX ISA, prmt.b32 with the
// highest bits of the selector set): of bytes 1 and 3 of low and of high.
__device__ inline uint32_t copied_signs(uint32_t low, uint32_t high) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, 0xfdb9;" : "=r"(bytes) : "r"(low), "r"(high));
  return bytes;
}

template <class T>
__device__ SignMasks sign_masks(const uint4& elements) {
  constexpr bool kHalf = std::is_same_v<T, __half>;
  static_assert(kHalf || std::is_same_v<T, __nv_bfloat16>);
  constexpr uint32_t kMagnitude = 0x7fff7fff;
  constexpr uint32_t kExponent = kHalf ? 0x7c007c00 : 0x7f807f80;
  constexpr uint32_t kOne = kHalf ? 0x04000400 : 0x00800080;  // of an exponent
  const uint32_t words[4] = {elements.x, elements.y, elements.z, elements.w};
  // Sums that reach the highest bit of an element, and never the next element.
  uint32_t nonzero[4];
  uint32_t not_finite = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    nonzero[i] = (words[i] & kMagnitude) + kMagnitude;
    not_finite |= (words[i] & kExponent) + kOne;
  }
  return {.nonzero = {copied_signs(nonzero[0], nonzero[1]), copied_signs(nonzero[2], nonzero[3])},
          .negative = {copied_signs(words[0], words[1]), copied_signs(words[2], words[3])},
          .finite = (not_finite & 0x80008000) == 0};
}

// A bit for each byte of two masks, the lowest one first.
__device__ inline uint32_t bits_of(const uint32_t (&masks)[2]) {
  constexpr uint32_t kOnes = 0x01010101;
  return __dp4a(masks[0] & 0x08040201u, kOnes, __dp4a(masks[1] & 0x80402010u, kOnes, 0u));
}

}  // namespace sparsellm::fused
