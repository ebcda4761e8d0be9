#pragma once

#include <cstdint>

#include "sparse/tca_bme/quantized/cuda/quantized_tile.cuh"

// Records of dense_i8 and dense_i4 (quantized_layout.h), which are not decoded: a lane's registers
// of A of a tile lie in 16 bytes, those of neighbouring lanes side by side, so no two lanes of a
// quarter of a warp meet in a bank.
namespace sparsellm::tca_bme {

inline constexpr int kTileValueBytes = 32 * 16;  // of all lanes

__device__ inline void load_four(uint32_t (&words)[4], uint32_t at) {
  const uint4 v = load_shared4(at);
  words[0] = v.x;
  words[1] = v.y;
  words[2] = v.z;
  words[3] = v.w;
}

template <>
struct QuantizedDecoder<0> {
  uint32_t values_at;

  __device__ explicit QuantizedDecoder(int lane) : values_at(lane * 16) {}
};

template <class Take>
__device__ inline void decode_half_of_bytes(uint32_t base, const QuantizedDecoder<0>& decoder,
                                            int half, Take take) {
  constexpr int kHalfColumns32 = kHalfChunks / 2;
#pragma unroll
  for (int columns32 = 0; columns32 < kHalfColumns32; ++columns32) {
    const uint32_t at =
        base + decoder.values_at + (kHalfColumns32 * half + columns32) * (4 * kTileValueBytes);
    uint32_t a[4][4];  // of tiles of 16 rows
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      load_four(a[m], at + m * kTileValueBytes);
    }
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      take(2 * columns32 + m / 2, m % 2, a[m]);
    }
  }
}

template <>
struct NibbleDecoder<0> {
  uint32_t values_at;

  __device__ NibbleDecoder(int lane, int group)
      : values_at(
            QuantizedLayout{.values = QuantizedLayout::Values::i4, .offsets = 0, .group = group}
                .header_bytes() +
            lane * 16) {}
};

// The nibbles of 32 columns, and in the high halves of the same bytes those of the next 32.
template <class Take>
__device__ inline void decode_half_of_nibbles(uint32_t base, const NibbleDecoder<0>& decoder,
                                              int half, Take take) {
  const uint32_t at = base + decoder.values_at + half * (4 * kTileValueBytes);
  uint32_t both[4][4];
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    load_four(both[m], at + m * kTileValueBytes);
  }
#pragma unroll
  for (int columns32 = 0; columns32 < 2; ++columns32) {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = (both[m][i] >> (4 * columns32)) & 0x0f0f0f0fu;
      }
      take(2 * columns32 + m / 2, m % 2, a);
    }
  }
}

}  // namespace sparsellm::tca_bme
