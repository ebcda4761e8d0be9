#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/base/warp.cuh"

// Votes of the sign predictor (sparse/activation/sign_predictor.h) as products on the tensor cores.
// With q the signed weight of a vote, a neuron's negative votes are
//   (sum of |q| - sum of q) / 2 + sum of q where the sign of W is negative,
// and the last sum is a product of sign bits and q, for eight tokens at once. An operand is a bit
// of each byte of the sign words, which stays in its place: as a byte it counts 1, 2, 4 ... 128.
// The votes of that bit are scaled so that all bits of a nibble count the same.
namespace sparsellm::vote_products {

// Of one call of add_segment(), by a warp.
inline constexpr int kNeurons = 16;
inline constexpr int kTokens = 8;
inline constexpr int kSegmentWords = 16;
inline constexpr int kLaneWords = 4;  // that a lane has of a segment and a neuron, or token
inline constexpr int kNibbles = 2;    // of a byte

// d [16, 8] += a [16, 32] * b [32, 8], u8 by s8 (PTX ISA, mma.m16n8k32; compute capability 8.0).
__device__ inline void mma_bytes(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                 uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// A vote, |q| <= 15, for bit `bit` of the bytes of sign words.
__device__ inline uint8_t vote_byte(int q, int bit) {
  return static_cast<uint8_t>(q << (3 - bit % 4));
}

// What a lane has of the sign words of a segment: words [4 * (lane % 4), + 4) of the neurons
// lane / 4 and lane / 4 + 8.
struct SignPiece {
  uint4 low;
  uint4 high;
};

// Four of the sums of a lane: number i is that of neuron lane / 4 + i / 2 * 8 and of token
// 2 * (lane % 4) + i % 2.
struct VoteSums {
  int of_pairs[4][4] = {};  // of two neighbouring bits of a byte; so products overlap

  __device__ int of(int i) const {
    return ((of_pairs[0][i] + of_pairs[1][i]) >> 3) + ((of_pairs[2][i] + of_pairs[3][i]) >> 7);
  }
};

// Adds the products of 16 neurons and kGroups times eight tokens over the columns of a segment.
// votes(group, i, nibble) is a uint4 of votes of token lane / 4 of a group: for each bit of a
// nibble, the lower one first, those of the four bytes of word 4 * (lane % 4) + i.
template <int kGroups, class Votes>
__device__ void add_segment(const SignPiece& signs, Votes&& votes, VoteSums (&sums)[kGroups]) {
  const uint32_t lows[kLaneWords] = {signs.low.x, signs.low.y, signs.low.z, signs.low.w};
  const uint32_t highs[kLaneWords] = {signs.high.x, signs.high.y, signs.high.z, signs.high.w};
#pragma unroll
  for (int i = 0; i < kLaneWords; ++i) {
#pragma unroll
    for (int pair = 0; pair < 2 * kNibbles; ++pair) {
      const uint32_t first = 0x01010101u << 2 * pair;
      const uint32_t second = first << 1;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const uint4 q = votes(group, i, pair / 2);
        mma_bytes(sums[group].of_pairs[pair], lows[i] & first, highs[i] & first, lows[i] & second,
                  highs[i] & second, pair % 2 == 0 ? q.x : q.z, pair % 2 == 0 ? q.y : q.w);
      }
    }
  }
}

// Where votes of token_votes_cuda.h lie, as a number of a uint4: those that a lane multiplies by,
// beside those of other lanes. `segment` is counted from group to group.
inline constexpr int kSegmentPieces = kLaneWords * kNibbles * kWarpSize;
__device__ inline int64_t vote_piece(int64_t segment, int i, int nibble, int lane) {
  return segment * kSegmentPieces + (i * kNibbles + nibble) * kWarpSize + lane;
}

}  // namespace sparsellm::vote_products
