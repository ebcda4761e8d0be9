#pragma once

#include <cstdint>

#include "sparse/tca_bme/cuda/record_tile.cuh"
#include "sparse/tca_bme/quantized/quantized_layout.h"

// How a warp decodes a record of version 3 (quantized_layout.h). As for version 2, 1-bit products
// of the bitmaps with constant masks count the values before each unit, on top of the offset of its
// group; a unit is then a window of 4 bytes, of which the bits of the unit, 4 apart, make the
// selector of a byte permutation: nibble k of it is the rank of value k among the unit's, or else a
// zero of the other operand.
namespace sparsellm::tca_bme {

constexpr int kHalfChunks = QuantizedLayout::kChunks / 2;

template <int OFFSET>
__device__ inline uint32_t load_word(uint32_t a) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1+%2];" : "=r"(v) : "r"(a), "n"(OFFSET) : "memory");
  return v;
}
__device__ inline uint32_t shift_right(uint32_t low, uint32_t high, uint32_t bits) {  // modulo 32
  uint32_t d;
  asm("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(low), "r"(high), "r"(bits));
  return d;
}

// What a lane keeps for the records of a matrix with this many offsets of a chunk, 16 or 8.
template <int OFFSETS>
struct QuantizedDecoder {
  static_assert(OFFSETS == 16 || OFFSETS == 8);
  uint32_t lane16, offsets_at;
  uint32_t before[2][2];  // of product j: row 8 h + g counts what is before unit (j, h) of row g

  __device__ explicit QuantizedDecoder(int lane)
      : lane16(lane * 16),
        offsets_at(QuantizedLayout{.offsets = OFFSETS}.mask_bytes() + (lane & 3) * 16) {
    const int g = lane >> 2;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        before[j][h] = 0;
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          const bool above = 2 * (lane & 3) + x < g;
          const auto counted = [&](int tile) {
            const uint32_t first = 0x1111u << (2 * tile);  // units h = 0; those of h = 1 beside
            return h == 0 ? (above ? first : 0u) : first | (above ? 2 * first : 0u);
          };
          uint32_t bits = counted(j);
          if (OFFSETS == 8 && j == 1) {  // goes on from product 0: what that left out of tile 0
            bits |= 0x3333u & ~counted(0);
          }
          before[j][h] |= bits << (16 * x);
        }
      }
    }
    asm volatile(""
                 : "+r"(lane16), "+r"(offsets_at), "+r"(before[0][0]), "+r"(before[0][1]),
                   "+r"(before[1][0]), "+r"(before[1][1]));
  }

  // at[j][2 h + q] = where the values of unit (j, q, h) of a chunk begin; `offsets` of the lane's
  // t, of the chunk c of those that are loaded together.
  __device__ void locate(uint32_t (&at)[2][4], uint32_t base, const uint4& offsets, int c,
                         uint32_t turned) const {
    if constexpr (OFFSETS == 16) {
      const uint32_t of_tiles[2] = {c % 2 == 0 ? offsets.x : offsets.z,
                                    c % 2 == 0 ? offsets.y : offsets.w};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        count(at[j], before[j], base, of_tiles[j], turned);
      }
    } else {
      const uint32_t of_chunk = c == 0   ? offsets.x
                                : c == 1 ? offsets.y
                                : c == 2 ? offsets.z
                                         : offsets.w;
      count(at[0], before[0], base, of_chunk, turned);
      bit_mma(at[1], before[1], turned, at[0]);
    }
  }

 private:
  __device__ static void count(uint32_t (&at)[4], const uint32_t (&before)[2], uint32_t base,
                               uint32_t offsets, uint32_t turned) {
    const uint32_t low = dot2(offsets, 0x0001u, base);
    const uint32_t high = dot2(offsets, 0x0100u, base);
    const uint32_t from[4] = {low, high, low, high};
    bit_mma(at, before, turned, from);
  }
};

// The values of unit U = 2 j + h of a row, which begin at `at` in shared memory, one a byte, with
// zeros where a bit is missing. `bits`: the row's of the chunk in the low half.
template <int U>
__device__ inline uint32_t load_unit(uint32_t at, uint32_t bits, uint32_t zero) {
  const uint32_t word = at & ~3u;
  const uint32_t window = shift_right(load_word<0>(word), load_word<4>(word), at * 8);
  // A set bit k takes 4 from nibble k of the selector and adds how many are set before it. Only the
  // first units leave room for the multiplier that does so; the last one is shifted.
  constexpr uint32_t kMultiplier = U == 1 ? 0x0886u : U == 2 ? 0x0443u : 0x110Cu;
  const uint32_t set = U < 3 ? bits & (0x1111u << U) : (bits >> 3) & 0x1111u;
  return permute(window, zero, set * kMultiplier + 0x4444u);
}

// The same for values of 4 bits, two units of a row, h = 0 and 1, in one window.
template <int OFFSETS>
struct NibbleDecoder {
  static_assert(OFFSETS == 8);
  uint32_t lane16, offsets_at;
  uint32_t before[2]
                 [2];  // product 0 counts what is before the units of tile h, 1 those of the first

  __device__ NibbleDecoder(int lane, int /*group*/)
      : lane16(lane * 16),
        offsets_at(QuantizedLayout{.offsets = 8}.mask_bytes() + (lane & 3) * 16) {
    const int g = lane >> 2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      before[0][h] = before[1][h] = 0;
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const int row = 2 * (lane & 3) + x;
        const uint32_t units = row < g ? 0x3333u << (2 * h) : 0u;
        before[0][h] |= ((h == 1 ? 0x3333u : 0u) | units) << (16 * x);
        before[1][h] |= (row == g ? 0x1111u << (2 * h) : 0u) << (16 * x);
      }
    }
    asm volatile(""
                 : "+r"(lane16), "+r"(offsets_at), "+r"(before[0][0]), "+r"(before[0][1]),
                   "+r"(before[1][0]), "+r"(before[1][1]));
  }
};

// The nibbles of units 2 J and 2 J + 1 of a row, from nibble `first` of shared memory on, one a
// byte, with 8, an excess that all have, where a bit is missing. `count`: those of the first unit.
template <int J>
__device__ inline void load_nibbles(uint32_t (&unit)[2], uint32_t first, uint32_t count,
                                    uint32_t bits) {
  const uint32_t word = (first >> 1) & ~3u;
  const uint32_t window = shift_right(load_word<0>(word), load_word<4>(word), first * 4);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint32_t two = permute(h == 0 ? window : window >> (count * 4), 0, 0x4140);
    const uint32_t bytes = (two | two << 4) & 0x0f0f0f0fu;
    constexpr uint32_t kEights = 0x08080808u;
    const int u = 2 * J + h;
    const uint32_t multiplier = u == 1 ? 0x0886u : u == 2 ? 0x0443u : 0x110Cu;
    const uint32_t set = u < 3 ? bits & (0x1111u << u) : (bits >> 3) & 0x1111u;
    unit[h] = permute(bytes, kEights, set * multiplier + 0x4444u);
  }
}

// As decode_half_of_bytes(), of a record of 4-bit values, each 8 too large.
template <class Take>
__device__ inline void decode_half_of_nibbles(uint32_t base, const NibbleDecoder<8>& decoder,
                                              int half, Take take) {
  uint32_t own[4], turned[4];
  load_transposed(turned, base + decoder.lane16 + half * (kHalfChunks * 128));
  load_matrices(own, base + decoder.lane16 + half * (kHalfChunks * 128));
  const uint4 offsets = load_shared4(base + decoder.offsets_at + half * 64);
#pragma unroll
  for (int i = 0; i < kHalfChunks; ++i) {
    const uint32_t of_chunk = i == 0   ? offsets.x
                              : i == 1 ? offsets.y
                              : i == 2 ? offsets.z
                                       : offsets.w;
    const uint32_t low = dot2(of_chunk, 0x0001u, 2 * base);
    const uint32_t high = dot2(of_chunk, 0x0100u, 2 * base);
    const uint32_t from[4] = {low, high, low, high};
    uint32_t at[2][4];
    bit_mma(at[0], decoder.before[0], turned[i], from);
    constexpr uint32_t kNone[4] = {};
    bit_mma(at[1], decoder.before[1], turned[i], kNone);
    const uint32_t bits[2] = {own[i], own[i] >> 16};
    const auto tile = [&]<int J>() {
      uint32_t units[2][2];  // of q
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        load_nibbles<J>(units[q], at[0][2 * J + q], at[1][2 * J + q], bits[q]);
      }
      const uint32_t a[4] = {units[0][0], units[1][0], units[0][1], units[1][1]};
      take(i, J, a);
    };
    tile.template operator()<0>();
    tile.template operator()<1>();
  }
}

// Calls take(i, j, a) for the tiles j = 0, 1 of each chunk i of that half of the record at `base`,
// chunk 4 * half + i of the record, with the registers of A that mma.m16n8k32 takes.
template <int OFFSETS, class Take>
__device__ inline void decode_half_of_bytes(uint32_t base, const QuantizedDecoder<OFFSETS>& decoder,
                                            int half, Take take) {
  constexpr int kOffsetsAtOnce = 32 / OFFSETS;
  uint32_t own[4], turned[4];
  uint4 offsets;
  load_transposed(turned, base + decoder.lane16 + half * (kHalfChunks * 128));
  load_matrices(own, base + decoder.lane16 + half * (kHalfChunks * 128));
#pragma unroll
  for (int i = 0; i < kHalfChunks; ++i) {
    if (i % kOffsetsAtOnce == 0) {
      const int c = kHalfChunks * half + i;
      offsets = load_shared4(base + decoder.offsets_at + c / kOffsetsAtOnce * 64);
    }
    uint32_t at[2][4];
    decoder.locate(at, base, offsets, i % kOffsetsAtOnce, turned[i]);
    const uint32_t bits[2] = {own[i], own[i] >> 16};  // of q
    {
      const uint32_t a[4] = {load_unit<0>(at[0][0], bits[0], 0), load_unit<0>(at[0][1], bits[1], 0),
                             load_unit<1>(at[0][2], bits[0], 0),
                             load_unit<1>(at[0][3], bits[1], 0)};
      take(i, 0, a);
    }
    {
      const uint32_t a[4] = {load_unit<2>(at[1][0], bits[0], 0), load_unit<2>(at[1][1], bits[1], 0),
                             load_unit<3>(at[1][2], bits[0], 0),
                             load_unit<3>(at[1][3], bits[1], 0)};
      take(i, 1, a);
    }
  }
}

// Both halves: take(c, j, a) of each chunk c.
template <class Decoder, class Take>
__device__ inline void decode_bytes(uint32_t base, const Decoder& decoder, Take take) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    decode_half_of_bytes(base, decoder, half, [&](int i, int j, const uint32_t(&a)[4]) {
      take(kHalfChunks * half + i, j, a);
    });
  }
}
template <class Decoder, class Take>
__device__ inline void decode_nibbles(uint32_t base, const Decoder& decoder, Take take) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    decode_half_of_nibbles(base, decoder, half, [&](int i, int j, const uint32_t(&a)[4]) {
      take(kHalfChunks * half + i, j, a);
    });
  }
}

}  // namespace sparsellm::tca_bme
