#pragma once

#include <cstdint>

#include "kernels/adjust_logits.h"
#include "kernels/base/warp.cuh"

// Finds the largest of a row of logits, for kernels with a block of kThreads threads for each row.
namespace sparsellm::logit_ranks {

inline constexpr int kThreads = 1024;
inline constexpr int kWarps = kThreads / kWarpSize;
inline constexpr int kDigitBits = 10;
inline constexpr int kDigits = 1 << kDigitBits;
inline constexpr int kCopies = 4;
inline constexpr int kFilterWords = kThreads;
inline constexpr unsigned kAllLanes = 0xffffffffu;
static_assert(kWarps == kWarpSize, "a warp looks at one value of each warp");
static_assert(kDigits == kThreads, "a thread looks at one digit");

__device__ inline int lane() { return threadIdx.x % kWarpSize; }
__device__ inline int warp() { return threadIdx.x / kWarpSize; }

// A candidate's place among all as one number, the larger the better: the bits of its logit, so
// mapped that they order like the logits, above those of the distance of its id from the last id.
// Every rank of a finite number is above 0.
inline constexpr uint64_t kNoRank = 0;

// The ids that a row must not get. Most ids are told from them by one bit, that of the id modulo
// the bits of the filter.
struct BannedIds {
  const int32_t* ids;
  int count;
  const unsigned* filter;  // shared, [kFilterWords]

  __device__ bool contains(int id) const {
    if (count == 0 || (filter[id / 32 % kFilterWords] >> id % 32 & 1) == 0) {
      return false;
    }
    for (int i = 0; i < count; ++i) {
      if (ids[i] == id) {
        return true;
      }
    }
    return false;
  }
};

struct IdRange {
  int begin;
  int end;
};

struct RankedLogits {
  const float* logits;
  int vocabulary;
  int id_bits;  // of a rank
  BannedIds banned;

  __device__ static RankedLogits of_row(const float* row, int vocabulary, const BannedIds& banned) {
    return {.logits = row,
            .vocabulary = vocabulary,
            .id_bits = 32 - __clz(vocabulary - 1),
            .banned = banned};
  }

  __device__ int rank_bits() const { return 32 + id_bits; }
  // That no finite number is below. Those of forbidden tokens are.
  __device__ uint64_t lowest_rank() const { return uint64_t{0x00800000} << id_bits; }

  __device__ uint64_t rank_of(float logit, int id) const {
    const unsigned bits = logit == 0.0f ? 0 : __float_as_uint(logit);  // -0 equals +0
    const unsigned ordered = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
    return uint64_t{ordered} << id_bits | static_cast<unsigned>(vocabulary - 1 - id);
  }
  __device__ float logit_of(uint64_t rank) const {
    const auto ordered = static_cast<unsigned>(rank >> id_bits);
    return __uint_as_float(ordered >> 31 != 0 ? ordered & 0x7fffffffu : ~ordered);
  }
  __device__ int id_of(uint64_t rank) const {
    return vocabulary - 1 - static_cast<int>(rank & ((uint64_t{1} << id_bits) - 1));
  }

  // visit(id, logit) for what the thread owns of the range: of the 16-byte vectors one in
  // `threads`, and at most one logit before and one after them (rows of an odd vocabulary begin
  // anywhere). The ids ascend. Loads go two by two, to have enough of them under way.
  template <class Visit>
  __device__ void for_each(IdRange range, int thread, int threads, Visit visit) const {
    const int misaligned = static_cast<int>(reinterpret_cast<uintptr_t>(logits + range.begin) %
                                            sizeof(float4) / sizeof(float));
    const int head = min(range.begin + (4 - misaligned) % 4, range.end);
    if (range.begin + thread < head) {
      visit(range.begin + thread, logits[range.begin + thread]);
    }
    const auto visit_vector = [&](int i, const float4& x) {
      const int id = head + 4 * i;
      visit(id, x.x);
      visit(id + 1, x.y);
      visit(id + 2, x.z);
      visit(id + 3, x.w);
    };
    const auto* vectors = reinterpret_cast<const float4*>(logits + head);
    const int count = (range.end - head) / 4;
    for (int i = thread; i < count; i += 2 * threads) {
      const int next = i + threads;
      const float4 x = __ldg(vectors + i);
      const float4 y = next < count ? __ldg(vectors + next) : x;
      visit_vector(i, x);
      if (next < count) {
        visit_vector(next, y);
      }
    }
    const int tail = head + 4 * count;
    if (tail + thread < range.end) {
      visit(tail + thread, logits[tail + thread]);
    }
  }

  // visit(rank) for the same ids, less the banned ones and those of a rank below `lowest`.
  template <class Visit>
  __device__ void for_each_rank(IdRange range, int thread, int threads, uint64_t lowest,
                                Visit visit) const {
    const float floor = logit_of(lowest);
    for_each(range, thread, threads, [&](int id, float logit) {
      if (logit < floor) {
        return;
      }
      const uint64_t rank = rank_of(logit, id);
      if (rank >= lowest && !banned.contains(id)) {
        visit(rank);
      }
    });
  }
};

// Sums of masses by digit, as two words, because 32 bits are what shared memory adds by
// itself. The lanes of a warp spread over copies in different banks: logits that are near each
// other have equal first digits, and additions to one address go one by one.
struct Histogram {
  unsigned low[kDigits][kCopies];
  unsigned high[kDigits][kCopies];

  __device__ void clear() {
    for (int copy = 0; copy < kCopies; ++copy) {
      low[threadIdx.x][copy] = 0;
      high[threadIdx.x][copy] = 0;
    }
  }
  __device__ void add(int digit, uint64_t mass) {
    const int copy = threadIdx.x % kCopies;
    const auto low_part = static_cast<unsigned>(mass);
    const unsigned carry = atomicAdd(&low[digit][copy], low_part) > ~low_part ? 1 : 0;
    const unsigned high_part = static_cast<unsigned>(mass >> 32) + carry;
    if (high_part != 0) {
      atomicAdd(&high[digit][copy], high_part);
    }
  }
  __device__ uint64_t mass(int digit) const {
    uint64_t sum = 0;
    for (int copy = 0; copy < kCopies; ++copy) {
      sum += uint64_t{high[digit][copy]} << 32 | low[digit][copy];
    }
    return sum;
  }
};

struct Digit {
  int value;
  uint64_t mass;    // of the candidates with this digit
  uint64_t wanted;  // of it, 1 to mass
};

// 33 KiB.
struct RunShared {
  Histogram histogram;
  uint64_t of_warps[kWarps];
  Digit digit;
};

__device__ inline uint64_t inclusive_sum_of_warp(uint64_t x) {
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const uint64_t other = __shfl_up_sync(kAllLanes, x, distance);
    x += lane() >= distance ? other : 0;
  }
  return x;
}

__device__ inline uint64_t largest_of_warp(uint64_t x) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    x = max(x, __shfl_xor_sync(kAllLanes, x, distance));
  }
  return x;
}

// Every thread gets the result. of_warps may be written again after the next __syncthreads().
__device__ inline uint64_t largest_of_block(uint64_t x, uint64_t* of_warps) {
  x = largest_of_warp(x);
  if (lane() == 0) {
    of_warps[warp()] = x;
  }
  __syncthreads();
  return largest_of_warp(of_warps[lane()]);
}

struct BlockSums {
  uint64_t before;  // of the threads before this one
  uint64_t total;
};

// of_warps as above.
__device__ inline BlockSums sums_of_block(uint64_t x, uint64_t* of_warps) {
  const uint64_t inclusive = inclusive_sum_of_warp(x);
  if (lane() == kWarpSize - 1) {
    of_warps[warp()] = inclusive;
  }
  __syncthreads();
  const uint64_t of_lane = of_warps[lane()];
  const uint64_t up_to_lane = inclusive_sum_of_warp(of_lane);
  const uint64_t before_warp = __shfl_sync(kAllLanes, up_to_lane - of_lane, warp());
  return {.before = before_warp + inclusive - x,
          .total = __shfl_sync(kAllLanes, up_to_lane, kWarps - 1)};
}

// The lowest rank of the shortest run of the best candidates whose masses reach goal(total mass);
// `lowest` if all are needed. Candidates are what for_each_from(rank, visit) visits, over all
// threads, from `lowest` on; mass(rank) does not grow from a rank to a lower one. A radix descent
// from the first bits of the ranks: each pass adds up, by the next digit, the candidates that agree
// with the digits found so far, and finds the digit where the goal is reached.
template <class ForEachFrom, class Mass, class Goal>
__device__ uint64_t lowest_of_run(uint64_t lowest, int rank_bits, ForEachFrom for_each_from,
                                  Mass mass, Goal goal, RunShared& shared) {
  uint64_t prefix = 0;
  uint64_t wanted = 0;
  int shift = rank_bits;
  while (shift > 0) {
    const int above = shift;
    shift = max(above - kDigitBits, 0);
    shared.histogram.clear();
    __syncthreads();
    for_each_from(max(lowest, prefix << above), [&](uint64_t rank) {
      if (rank >> above == prefix) {
        const uint64_t digit = (rank >> shift) - (prefix << (above - shift));
        shared.histogram.add(static_cast<int>(digit), mass(rank));
      }
    });
    __syncthreads();
    const int value = kDigits - 1 - threadIdx.x;
    const uint64_t own = shared.histogram.mass(value);
    const BlockSums sums = sums_of_block(own, shared.of_warps);
    if (above == rank_bits) {
      wanted = goal(sums.total);
      if (wanted >= sums.total) {
        return lowest;
      }
    }
    if (sums.before < wanted && wanted <= sums.before + own) {
      shared.digit = {.value = value, .mass = own, .wanted = wanted - sums.before};
    }
    __syncthreads();
    const Digit found = shared.digit;
    prefix = prefix << (above - shift) | static_cast<unsigned>(found.value);
    wanted = found.wanted;
    // Without any one of the digit's candidates the goal would be missed: all belong to the run.
    if (found.mass - wanted < mass(prefix << shift)) {
      break;
    }
  }
  return max(lowest, prefix << shift);
}

// The best rank among the logits of this thread; `infinite` becomes true if one is no finite number
// and does not say that its token is forbidden.
__device__ inline uint64_t best_rank(const RankedLogits& row, bool& infinite) {
  float best = __uint_as_float(0x7fffffffu);  // a NaN: nothing is <= it
  int best_id = -1;
  row.for_each({0, row.vocabulary}, threadIdx.x, kThreads, [&](int id, float logit) {
    if (!(logit <= best) || logit == -INFINITY) {
      const bool forbidden = __float_as_uint(logit) == kForbiddenLogit;
      infinite |= !isfinite(logit) && !forbidden;
      if (!forbidden && !row.banned.contains(id)) {
        best = logit;
        best_id = id;
      }
    }
  });
  return best_id < 0 ? kNoRank : row.rank_of(best, best_id);
}

}  // namespace sparsellm::logit_ranks
