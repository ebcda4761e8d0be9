#pragma once

#ifndef __CUDACC_RTC__
#include <cmath>  // fmaf()
#endif

// How products of nonzeros become sums of rows (the reductions of GeneralSparse, Wang et al., ATC
// 2025; its Algorithm 1 is warp_bitmap(), Algorithm 2 warp_segment() and block_segment()). A kernel
// takes one at each level at which there is something to add:
//
//   nonzeros of        thread            warp              block
//   one row            thread_total()    warp_total()      block_total()
//   several rows       thread_bitmap()   warp_bitmap()     block_bitmap()
//   above a bitmap                       warp_segment()    block_segment()
//
// Rows that a level has whole end the chain. Where they are split it goes on: above a total are a
// total or a bitmap, above a bitmap a segment, above a segment a segment. The thread's level is
// skipped if no thread has two nonzeros. Of rows that are split over blocks, the parts are put into
// the workspace and added by block_segment() again, blocks in the place of warps.
//
// Words used below:
//   group    `G` adjacent lanes with the same nonzeros and other tokens; a warp has K = 32 / G. The
//            nonzeros of a group come after those of the group before.
//   T        the tokens, and so the sums, of a thread
//   starts   a bit per nonzero or per group, set where a row starts; bits above those are not set.
//            Rows without nonzeros start nowhere.
//   part     the nonzeros of one thread, group, warp or block
//   leading  the sum of what a part has before its first start, all of it if it has none: it is of
//            a row that starts in an earlier part. 0 if a row starts with its first nonzero.
//   trailing the sum of what it has from its last start on, all of it if it has none
// The row that starts last in part p has the sum: trailing of p + leading of p + 1, ..., e, where e
// is the next part with a start. (The paper adds both ends of one part, maybe of two rows.)
//
// All sums are f32, without atomics, and in an order that is the same for all tokens: it depends on
// which part has which nonzeros and on the places of the starts, but not on T. What all lanes of a
// warp have to call, with the same starts, has `Lanes` among its parameters: WarpLanes, or in tests
// what stands for 32 lanes on the host.
//
// Instructions of a warp, beside those that compute the products:
//   thread_total    T fused multiply-adds a nonzero, which are also the products
//   thread_bitmap   the same, a test of the bit, and for a start T moves and what is stored
//   warp_total      T log2 K shuffles and additions
//   warp_total_scattered  for T <= K: T - 1 + log2(K / T) shuffles and additions, 2 (T - 1)
//                         selections. T = 8, K = 32: 9 shuffles in the place of 40.
//   warp_bitmap     T log2 K shuffles and predicated additions; 3 for the length of the row, and
//                   log2 K comparisons
//   warp_segment    T (1 + log2 K) shuffles and predicated additions; comparisons as warp_bitmap
//   block_total, block_bitmap, block_segment
//                   T stores to shared memory and a barrier, which are the caller's; then at most
//                   warps - 1 times T loads and additions, by as many threads as there are tokens
//                   (block_total), or by the group of each warp that has its last start
//
// The run-time compiler has no headers: nothing is included for it; only built-in functions are
// called.
namespace sparsellm::general_sparse {

// --- Thread. Products of nonzero `a` with this thread's tokens of x are added, one nonzero after
// the other.

template <int T>
__device__ inline void thread_total(float a, const float (&x)[T], float (&sums)[T]) {
#pragma unroll
  for (int t = 0; t < T; ++t) {
    sums[t] = fmaf(a, x[t], sums[t]);
  }
}

// What a thread knows of its rows after some of its nonzeros; at first {}. Then `sums` are
// trailing.
template <int T>
struct ThreadRows {
  float leading[T];  // 0 before the first start
  float sums[T];     // since the last start
  int starts;        // so far
};

// store(r, sums) is called for row r of those that start in this thread, from 0 on, when the next
// one starts. The last one, r = starts - 1, is left to the caller: its sum is `sums` if rows are
// whole, else what warp_segment() makes of it.
template <int T, class Store>
__device__ inline void thread_bitmap(bool start, float a, const float (&x)[T], ThreadRows<T>& rows,
                                     const Store& store) {
  if (start) {
    if (rows.starts > 0) {
      store(rows.starts - 1, rows.sums);
    }
#pragma unroll
    for (int t = 0; t < T; ++t) {
      rows.leading[t] = rows.starts > 0 ? rows.leading[t] : rows.sums[t];
      rows.sums[t] = 0.0f;
    }
    ++rows.starts;
  }
  thread_total(a, x, rows.sums);
}

// After the last nonzero of a thread whose rows are split.
template <int T>
__device__ inline void end_thread_rows(ThreadRows<T>& rows) {
#pragma unroll
  for (int t = 0; t < T; ++t) {
    rows.leading[t] = rows.starts > 0 ? rows.leading[t] : rows.sums[t];
  }
}

// --- Warp.

// Each group gets the sums of all.
template <class Lanes, int T>
__device__ inline void warp_total(typename Lanes::Float (&sums)[T]) {
#pragma unroll
  for (int bit = Lanes::kGroups / 2; bit > 0; bit /= 2) {
#pragma unroll
    for (int t = 0; t < T; ++t) {
      sums[t] = sums[t] + Lanes::exchange(sums[t], bit);
    }
  }
}

// How many of the T tokens each group is left with by warp_total_scattered().
template <class Lanes, int T>
inline constexpr int kScatteredTokens = T > Lanes::kGroups ? T / Lanes::kGroups : 1;

// The same sums, bit for bit, but group g gets those of kScatteredTokens tokens alone, from token
// g * T / K on (rounded down), at the beginning of `sums`; the rest of them is undefined. T is a
// power of 2.
template <class Lanes, int T>
__device__ inline void warp_total_scattered(typename Lanes::Float (&sums)[T]) {
  int tokens = T;
#pragma unroll
  for (int bit = Lanes::kGroups / 2; bit > 0; bit /= 2) {
    if (tokens == 1) {
      sums[0] = sums[0] + Lanes::exchange(sums[0], bit);
      continue;
    }
    // Of two groups, one goes on with the first half of the tokens, the other with the second.
    tokens /= 2;
    const auto second = Lanes::in_group_with(bit);
#pragma unroll
    for (int t = 0; t < T / 2; ++t) {
      if (t < tokens) {
        const auto kept = Lanes::select(second, sums[t + tokens], sums[t]);
        const auto given = Lanes::select(second, sums[t], sums[t + tokens]);
        sums[t] = kept + Lanes::exchange(given, bit);
      }
    }
  }
}

// Adds to each group's sums those of the groups between it and the next start. With steps 1, 2, 4,
// ..., a group adds what the one `step` later has if that is of the same row: Algorithm 1, which
// finds this out by a bit that moves along, but here from the distance to the next start. Then the
// sum of a row stands in the group with its start, and in group 0 the leading sum of the warp, if
// its bit is not set. The sums of other groups are not used.
template <class Lanes, int T>
__device__ inline void warp_bitmap(unsigned starts, typename Lanes::Float (&sums)[T]) {
  const auto length = Lanes::distance_to(starts >> 1 | 1u << (Lanes::kGroups - 1));
#pragma unroll
  for (int step = 1; step < Lanes::kGroups; step *= 2) {
    const auto same_row = length > step;
#pragma unroll
    for (int t = 0; t < T; ++t) {
      const auto later = Lanes::from_later(sums[t], step);
      sums[t] = Lanes::select(same_row, sums[t] + later, sums[t]);
    }
  }
}

// Above thread_bitmap(): bit g of `starts` is set if a row starts in group g, `leading` and `sums`
// are the group's leading and trailing sums. Afterwards `sums` of a group with a start is the sum
// of the row that starts last in it; that of group 0, if nothing starts there, the leading sum of
// the warp, which else is still group 0's own.
template <class Lanes, int T>
__device__ inline void warp_segment(unsigned starts, const typename Lanes::Float (&leading)[T],
                                    typename Lanes::Float (&sums)[T]) {
  // As in warp_bitmap(), over the leading sums of the groups after this one, up to that of the next
  // with a start, or of the last: `length` of them, 0 for the last group.
  constexpr unsigned kLast = Lanes::kGroups > 1 ? 1u << (Lanes::kGroups - 2) : 0u;
  const auto length = Lanes::distance_to(starts >> 1 | kLast);
  const auto any = length > 0;
#pragma unroll
  for (int t = 0; t < T; ++t) {
    auto later = Lanes::from_later(leading[t], 1);
#pragma unroll
    for (int step = 1; step < Lanes::kGroups; step *= 2) {
      const auto further = Lanes::from_later(later, step);
      later = Lanes::select(length > step, later + further, later);
    }
    sums[t] = Lanes::select(any, sums[t] + later, sums[t]);
  }
}

// --- Block, or all blocks: parts are added from left to right, which for the few warps of a block
// is shorter than halving them with a barrier each time.

// The sums of parts, in shared memory or in the workspace. Those of part p and token t of the
// thread are sums[p * stride + t * G].
template <int G>
struct PartSums {
  float* sums;        // of the thread's place in its group
  unsigned* started;  // [count]: whether a row starts in the part
  int stride;
  int count;
};

// By a group that has the sums of a part: its leading sums, or for block_total() and
// block_bitmap(), where a warp has one row, its sum. There is a barrier before they are read.
template <int G, int T>
__device__ inline void put_part(const PartSums<G>& parts, int part, bool started,
                                const float (&sums)[T]) {
#pragma unroll
  for (int t = 0; t < T; ++t) {
    parts.sums[part * parts.stride + t * G] = sums[t];
  }
  parts.started[part] = started ? 1u : 0u;
}

// The sum of the one row of all parts, for one token of the thread.
template <int G>
__device__ inline float block_total(const PartSums<G>& parts, int token) {
  float sum = parts.sums[token * G];
  for (int part = 1; part < parts.count; ++part) {
    sum += parts.sums[part * parts.stride + token * G];
  }
  return sum;
}

// A part has one row, or some of one: adds to `sums` of part `part` those up to the next start.
template <int G, int T>
__device__ inline void block_bitmap(const PartSums<G>& parts, int part, float (&sums)[T]) {
  for (int later = part + 1; later < parts.count && parts.started[later] == 0; ++later) {
#pragma unroll
    for (int t = 0; t < T; ++t) {
      sums[t] += parts.sums[later * parts.stride + t * G];
    }
  }
}

// A part has several rows: adds to the trailing `sums` of part `part` the leading ones up to the
// next part with a start, that one's included. The leading sums of a block are those of its part 0;
// if nothing starts there, with what this adds to them.
template <int G, int T>
__device__ inline void block_segment(const PartSums<G>& parts, int part, float (&sums)[T]) {
  bool same_row = true;
  for (int later = part + 1; later < parts.count && same_row; ++later) {
#pragma unroll
    for (int t = 0; t < T; ++t) {
      sums[t] += parts.sums[later * parts.stride + t * G];
    }
    same_row = parts.started[later] == 0;
  }
}

}  // namespace sparsellm::general_sparse
