#pragma once

#include <cstdint>

#include "kernels/base/pdl.cuh"
#include "kernels/base/warp.cuh"
#include "sparse/activation/cuda/vote_products.cuh"

// The kernel of sign_predictor.h on CUDA that counts votes.
namespace sparsellm::vote_products {

inline constexpr int kMostWarps = 16;
inline constexpr int kMostUnits = 16;  // of a block; a unit is kNeurons neurons
// From a token's sums to the next one's: what the lanes of a warp add to lies in different banks.
inline constexpr int kRowSums = kMostUnits * kNeurons + 4;

// Bits of a weight: signs, or which elements are not zero.
struct WeightBits {
  const uint32_t* words;
  int64_t stride;

  __device__ const uint32_t* row(int64_t index) const { return words + index * stride; }
};

struct WeightSigns {
  WeightBits signs;
  WeightBits nonzero;
  int64_t rows;
  int words;
};

// What token_votes::write_bytes_cuda() made of some tokens.
struct TokenVotes {
  const uint4* votes;
  const int2* totals;
  int tokens;
};

// Words [4 * (lane % 4), + 4) of a segment and a row; zeros where there are none. kAligned: all
// rows are whole vectors of four words.
template <bool kAligned>
__device__ uint4 load_bits(const WeightSigns& w, const WeightBits& bits, int64_t row, int segment) {
  const int word = segment * kSegmentWords + static_cast<int>(threadIdx.x) % 4 * kLaneWords;
  const int count = row < w.rows ? w.words - word : 0;
  if (count <= 0) {
    return {};
  }
  const uint32_t* const from = bits.row(row) + word;
  if constexpr (kAligned) {
    return *reinterpret_cast<const uint4*>(from);
  }
  return {from[0], count > 1 ? from[1] : 0, count > 2 ? from[2] : 0, count > 3 ? from[3] : 0};
}

template <bool kAligned>
__device__ SignPiece load_signs(const WeightSigns& w, const WeightBits& bits, int64_t row,
                                int segment) {
  return {load_bits<kAligned>(w, bits, row, segment),
          load_bits<kAligned>(w, bits, row + kNeurons / 2, segment)};
}

__device__ inline uint4 both(const uint4& a, const uint4& b) {
  return {a.x & b.x, a.y & b.y, a.z & b.z, a.w & b.w};
}
__device__ inline SignPiece both(const SignPiece& a, const SignPiece& b) {
  return {both(a.low, b.low), both(a.high, b.high)};
}
__device__ inline uint4 magnitudes(const uint4& votes) {
  return {__vabs4(votes.x), __vabs4(votes.y), __vabs4(votes.z), __vabs4(votes.w)};
}

__device__ inline void prefetch(const uint32_t* words) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(words));
}

// The votes of kGroups groups of eight tokens in a segment, as add_segment() takes them; zeros for
// tokens that are not there.
template <int kGroups>
struct SegmentVotes {
  uint4 pieces[kGroups][kLaneWords][kNibbles];

  __device__ void load(const TokenVotes& x, int first_token, int segment, int segments) {
    const int lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int token = first_token + group * kTokens;
      const int64_t place = int64_t{token} / kTokens * segments + segment;
#pragma unroll
      for (int i = 0; i < kLaneWords; ++i) {
#pragma unroll
        for (int nibble = 0; nibble < kNibbles; ++nibble) {
          pieces[group][i][nibble] =
              token + lane / 4 < x.tokens ? x.votes[vote_piece(place, i, nibble, lane)] : uint4{};
        }
      }
    }
  }
  __device__ uint4 operator()(int group, int i, int nibble) const {
    return pieces[group][i][nibble];
  }
};

// A block has some units of rows and, by blockIdx.y, kGroups groups of eight tokens. Its warps have
// the segments of the columns between them: a warp keeps the votes of a segment in registers while
// the signs of the units pass by, and the sums of all warps meet in shared memory (17 KiB). Signs
// do not depend on x: those of the first kAhead units are loaded, and those of the others fetched
// into the L2, before the votes are there. With kHasZeros a row has totals of its own, of its
// elements that are not zero, instead of the token's. 128 registers, for the most warps.
template <int kGroups, bool kHasZeros, bool kAligned, class Store>
__global__ void __launch_bounds__(kMostWarps* kWarpSize)
    count_votes_kernel(WeightSigns w, TokenVotes x, Store store) {
  constexpr int kAhead = kHasZeros || kGroups > 1 ? 2 : 6;
  constexpr int kBlockTokens = kGroups * kTokens;
  constexpr int kSums = (kHasZeros ? 2 : 1) * kBlockTokens;
  // Twice the sum of q where the sign of W is negative. With zeros: less the sum of q where W is
  // not zero; and, kTokens further, the sum of |q| there.
  __shared__ int sums[kSums][kRowSums];
  __shared__ int2 totals[kBlockTokens];
  launch_dependents();
  const int lane = threadIdx.x % kWarpSize;
  const int64_t units = (w.rows + kNeurons - 1) / kNeurons;
  const int64_t first_unit = units * blockIdx.x / gridDim.x;
  const int own_units = static_cast<int>(units * (blockIdx.x + 1) / gridDim.x - first_unit);
  const int64_t first_row = first_unit * kNeurons;
  const int own_rows = static_cast<int>(min(w.rows - first_row, int64_t{own_units} * kNeurons));
  const int segments = (w.words + kSegmentWords - 1) / kSegmentWords;
  const int first_token = static_cast<int>(blockIdx.y) * kBlockTokens;
  const int tokens = min(x.tokens - first_token, kBlockTokens);

  SignPiece signs[kAhead];
  SignPiece nonzero[kAhead];
  const auto load = [&](int slot, int unit, int segment) {
    if (unit < own_units) {
      const int64_t row = first_row + unit * kNeurons + lane / 4;
      signs[slot] = load_signs<kAligned>(w, w.signs, row, segment);
      if constexpr (kHasZeros) {
        nonzero[slot] = load_signs<kAligned>(w, w.nonzero, row, segment);
      }
    }
  };
  const auto load_first = [&](int segment) {
#pragma unroll
    for (int slot = 0; slot < kAhead; ++slot) {
      load(slot, slot, segment);
    }
  };
  int segment = uniform_warp();
  load_first(segment);
  if (segment < segments) {
    for (int row = kAhead * kNeurons + lane; row < own_rows; row += kWarpSize) {
      prefetch(w.signs.row(first_row + row) + segment * kSegmentWords);
    }
  }
  for (int row = threadIdx.x; row < own_units * kNeurons; row += static_cast<int>(blockDim.x)) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      sums[i][row] = 0;
    }
  }
  __syncthreads();
  wait_on_dependencies();
  int2 total_of_token{};  // of the first threads, which need not wait for it before the end
  if (threadIdx.x < tokens) {
    total_of_token = x.totals[first_token + threadIdx.x];
  }

  const auto add = [&](int first_sum, int unit, int i, int sum) {
    const int t = 2 * (lane % 4) + i % 2;
    atomicAdd(&sums[first_sum + t][unit * kNeurons + lane / 4 + i / 2 * 8], sum);
  };
  while (segment < segments) {
    SegmentVotes<kGroups> votes;
    votes.load(x, first_token, segment, segments);
    const auto count = [&](int slot, int unit) {
      VoteSums negative[kGroups];
      if constexpr (kHasZeros) {
        add_segment(both(signs[slot], nonzero[slot]), votes, negative);
      } else {
        add_segment(signs[slot], votes, negative);
        load(slot, unit + kAhead, segment);
      }
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          add(group * kTokens, unit, i, 2 * negative[group].of(i));
        }
      }
      if constexpr (kHasZeros) {
        const auto signed_and_magnitudes = [&](int which, int i, int nibble) {
          return which == 0 ? votes(0, i, nibble) : magnitudes(votes(0, i, nibble));
        };
        VoteSums all[2];
        add_segment(nonzero[slot], signed_and_magnitudes, all);
        load(slot, unit + kAhead, segment);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          add(0, unit, i, -all[0].of(i));
          add(kTokens, unit, i, all[1].of(i));
        }
      }
    };
    for (int first = 0; first < own_units; first += kAhead) {
#pragma unroll
      for (int slot = 0; slot < kAhead; ++slot) {
        if (first + slot < own_units) {
          count(slot, first + slot);
        }
      }
    }
    segment += static_cast<int>(blockDim.x) / kWarpSize;
    load_first(segment);
  }
  if (threadIdx.x < kBlockTokens) {
    totals[threadIdx.x] = total_of_token;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < tokens * own_rows; i += static_cast<int>(blockDim.x)) {
    const int t = i / own_rows;
    const int row = i - t * own_rows;
    int2 total = totals[t];
    if constexpr (kHasZeros) {
      total = make_int2(sums[kTokens + t][row], 0);
    }
    const int negative = (total.x - total.y + sums[t][row]) / 2;
    store(first_token + t, first_row + row, negative, total.x - negative);
  }
}

}  // namespace sparsellm::vote_products
