#pragma once

#ifndef __CUDACC_RTC__
#include "kernels/base/pdl.cuh"
#include "sparse/general_sparse/device/kernel_plan.h"
#include "sparse/general_sparse/device/partial_sums.cuh"
#include "sparse/general_sparse/device/plan_operands.h"
#include "sparse/general_sparse/device/plan_values.cuh"
#include "sparse/general_sparse/device/reductions.cuh"
#include "sparse/general_sparse/device/warp_lanes.cuh"
#endif

// C = A * B as a KernelPlan has it: the kernels of GeneralSparse (Wang et al., ATC 2025, sections
// on its memory access and reduction spaces), for rows of A in an encoding whose groups are apart.
// "Row" is a group of R rows that share positions below. plan.h says which groups of threads have
// which part of the nonzeros, plan_work.h what the arrays hold, reductions.cuh how sums are
// made of products. The run-time compiler is given these headers one after the other.
//
// The order of all sums depends on the sparse division, its steps and the reductions alone: on the
// groups of a warp and the sparse warps of a block, but not on how many tokens a thread or a tile
// has. No atomics: the same bits in every run.
namespace sparsellm::general_sparse {

// C has:
//   Value       of A, B and C: float, DeviceF16, DeviceBf16
//   Position    of the encoding: unsigned short, unsigned
//   kPlan       the KernelPlan
//   R           rows that share an entry: 1, 2, 4, 8
//   kPartGroups groups of threads that have a part of the nonzeros (plan.h)
//   kPartIsRow  a part is a row: nothing says where rows start
//   kGroupLoads with several, split rows a thread: the loads of each group, if no part has more
//               than that for each of its groups; else 0. With one row the same, as a bound.
//   part_begin(i, table)  the load at which part i begins, i <= parts
//   row(i, table)         the row of C of the i-th row that has entries
template <class C>
struct PlanKernel {
  using Value = typename C::Value;
  using Position = typename C::Position;
  static constexpr KernelPlan kPlan = C::kPlan;
  static constexpr int R = C::R;
  static constexpr int T = kPlan.tokens_per_thread;
  static constexpr int G = kPlan.threads_per_group;
  static constexpr int kTokenWarps = kPlan.warps_per_group;
  static constexpr int kThreads = kPlan.threads;
  static constexpr int K = 32 / G;                       // groups of a warp
  static constexpr int S = kThreads / 32 / kTokenWarps;  // sparse warps of a block
  static constexpr int kTile = T * G * kTokenWarps;
  static constexpr int kSums = R * kTile;  // of a row

  static constexpr int kStep = kPlan.step_nonzeros;
  static constexpr int V = kPlan.a_vector;
  static constexpr int kStepLoads = kStep / V;
  static constexpr int X = kPlan.x_vector;

  static constexpr int kPartGroups = C::kPartGroups;
  static constexpr int kBlockParts = K * S / kPartGroups;
  static constexpr bool kSeveral = kPlan.thread.rows == RowCount::several;  // rows a thread
  static constexpr bool kWarpOne = kPlan.warp.rows == RowCount::one;
  static constexpr bool kBlockSplit = kPlan.block.ends == RowEnds::split;
  // Rows that the block's level adds at once, by what they take of the shared memory.
  static constexpr int kMostShared = 8192;  // sums
  static constexpr int kRowsAtOnce = R * S * kTile <= kMostShared ? R : 1;
  static_assert(S * kTile <= kMostShared);

  using Lanes = WarpLanes<G>;

  const PlanOperands& o;
  int group;        // of the warp
  int sparse_warp;  // of the block; warps with the same nonzeros are adjacent
  int place;        // of the thread's first token in its tile

  // --- Which nonzeros.

  struct Range {
    unsigned begin = 0;  // loads
    unsigned end = 0;
    unsigned row = 0;      // the number of the row that starts first in it, if one does
    bool started = false;  // one row: whether it starts in the thread's part
  };

  __device__ bool is_start(unsigned item) const {
    return (o.starts[item / 32].bits >> item % 32 & 1u) != 0;
  }
  __device__ unsigned rows_before(unsigned item) const {
    const RowStarts starts = o.starts[item / 32];
    return starts.before + static_cast<unsigned>(__popc(starts.bits & ((1u << item % 32) - 1u)));
  }
  // The item with which a block of split rows begins.
  static __device__ unsigned first_item(unsigned block, const void* part_table) {
    return kSeveral ? C::part_begin(block, part_table) : block * kBlockParts;
  }

  __device__ Range range_of_thread() const {
    const unsigned in_block = static_cast<unsigned>(sparse_warp * K + group);
    const unsigned part = blockIdx.x * kBlockParts + in_block / kPartGroups;
    const unsigned share = in_block % kPartGroups;
    Range range;
    if (part >= o.parts) {
      return range;
    }
    const unsigned begin = C::part_begin(part, o.part_table);
    unsigned end = C::part_begin(part + 1, o.part_table);
    end = end < o.loads ? end : o.loads;
    if constexpr (kSeveral) {
      const unsigned loads =
          C::kGroupLoads > 0 ? C::kGroupLoads : (end - begin + (kPartGroups - 1)) / kPartGroups;
      range.begin = begin + share * loads;
      range.end = range.begin + loads < end ? range.begin + loads : end;
      range.row = range.begin < range.end ? rows_before(range.begin) : 0;
    } else {
      range.begin = begin + share * kStepLoads;
      range.end = end;
      range.row = C::kPartIsRow ? part : rows_before(part);
      range.started = C::kPartIsRow || is_start(part);
    }
    return range;
  }

  // --- Tokens. Those of a vector are adjacent, and so are vectors of the lanes of a group.

  __device__ static constexpr int token_step(int t) { return t / X * (G * X) + t % X; }
  __device__ int token(int t) const {
    return static_cast<int>(blockIdx.y) * kTile + place + token_step(t);
  }

  __device__ void load_x(Position position, float (&x)[T]) const {
    const Value* const b = static_cast<const Value*>(o.b);
    if constexpr (kPlan.x_order == XOrder::by_token) {
#pragma unroll
      for (int t = 0; t < T; ++t) {
        x[t] = token(t) < o.tokens ? as_float(b[token(t) * o.b_stride + position]) : 0.0f;
      }
    } else {
      const Value* const of_column = b + position * o.b_stride;
#pragma unroll
      for (int t = 0; t < T; t += X) {
        if (X > 1 && o.vectors && token(t) + X <= o.tokens) {
          const auto pack = load_pack<Pack<Value, X>>(of_column + token(t), 0);
#pragma unroll
          for (int i = 0; i < X; ++i) {
            x[t + i] = as_float(pack.elements[i]);
          }
        } else {
#pragma unroll
          for (int i = 0; i < X; ++i) {
            x[t + i] = token(t) + i < o.tokens ? as_float(of_column[token(t) + i]) : 0.0f;
          }
        }
      }
    }
  }

  // Of a row of C, X tokens from this one on.
  __device__ static void store_vector(const PlanOperands& o, unsigned row, int token,
                                      const Pack<Value, X>& pack) {
    Value* const to = static_cast<Value*>(o.c) + row * o.c_row;
    if (X > 1 && o.vectors && o.c_token == 1 && token + X <= o.tokens) {
      *reinterpret_cast<Pack<Value, X>*>(to + token) = pack;
      return;
    }
#pragma unroll
    for (int i = 0; i < X; ++i) {
      if (token + i < o.tokens) {
        to[(token + i) * o.c_token] = pack.elements[i];
      }
    }
  }

  // Of row r of the row with this number.
  __device__ void store(unsigned number, int r, const float (&sums)[T]) const {
    const unsigned row = C::row(number, o.row_table) * R + static_cast<unsigned>(r);
    if (R > 1 && row >= o.rows) {
      return;
    }
#pragma unroll
    for (int t = 0; t < T; t += X) {
      Pack<Value, X> pack;
#pragma unroll
      for (int i = 0; i < X; ++i) {
        round_to(sums[t + i], pack.elements[i]);
      }
      store_vector(o, row, token(t), pack);
    }
  }
  __device__ void store(unsigned number, const ThreadRows<T> (&rows)[R]) const {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      store(number, r, rows[r].sums);
    }
  }

  // --- A thread's nonzeros, a step at a time. Past the end there are zeros times zero.

  __device__ void multiply(const Range& range, ThreadRows<T> (&rows)[R]) const {
    constexpr unsigned kStride = kSeveral ? kStepLoads : kPartGroups * kStepLoads;
    for (unsigned load = range.begin; load < range.end; load += kStride) {
      Position at[kStep];
      float a[kStep][R];
      bool start[kStepLoads];
#pragma unroll
      for (int l = 0; l < kStepLoads; ++l) {
        Pack<Position, V> positions{};
        Pack<Value, V * R> values{};
        start[l] = false;
        if (load + l < range.end) {
          positions = load_pack<Pack<Position, V>>(o.positions, load + l);
          values = load_pack<Pack<Value, V * R>>(o.values, load + l);
          if constexpr (kSeveral) {
            start[l] = is_start(load + l);
          }
        }
#pragma unroll
        for (int i = 0; i < V; ++i) {
          at[l * V + i] = positions.elements[i];
#pragma unroll
          for (int r = 0; r < R; ++r) {
            a[l * V + i][r] = as_float(values.elements[i * R + r]);
          }
        }
      }
      float x[kStep][T] = {};
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        if (load + i / V < range.end) {
          load_x(at[i], x[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
          if constexpr (kSeveral) {
            thread_bitmap(i % V == 0 && start[i / V], a[i][r], x[i], rows[r],
                          [&](int row, const float(&sums)[T]) {
                            store(range.row + static_cast<unsigned>(row), r, sums);
                          });
          } else {
            thread_total(a[i][r], x[i], rows[r].sums);
          }
        }
      }
      if constexpr (C::kGroupLoads == kStepLoads) {
        break;  // no group has more than a step
      }
    }
  }

  // --- From threads to blocks.

  __device__ void multiply_parts() const {
    const Range range = range_of_thread();
    ThreadRows<T> rows[R] = {};
    multiply(range, rows);
    const int starts = kSeveral ? rows[0].starts : (range.started ? 1 : 0);
    // The row that starts last; that of other levels, below, is the one of the thread that has it.
    const unsigned row = range.row + static_cast<unsigned>(starts) - 1u;
    if constexpr (kPlan.thread.ends == RowEnds::whole) {
      if (starts > 0) {
        store(row, rows);
      }
    } else {
      add_warp(starts > 0, row, rows);
    }
  }

  __device__ void add_warp(bool started, unsigned row, ThreadRows<T> (&rows)[R]) const {
    // A bit for each group in which a row starts. Of one row all groups know, and have its sum: the
    // first one goes on with it.
    unsigned starts = 0;
    if constexpr (kWarpOne) {
      starts = started ? 1u : 0u;
    } else {
      starts = Lanes::ballot(started);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if constexpr (kSeveral) {
        end_thread_rows(rows[r]);
      }
      if constexpr (kPlan.warp_reduction == Reduction::total) {
        warp_total<Lanes>(rows[r].sums);
      } else if constexpr (kPlan.warp_reduction == Reduction::bitmap) {
        warp_bitmap<Lanes>(starts, rows[r].sums);
      } else if constexpr (kPlan.warp_reduction == Reduction::segment) {
        warp_segment<Lanes>(starts, rows[r].leading, rows[r].sums);
      }
    }
    const bool mine = (starts >> group & 1u) != 0;
    const bool last = starts >> group == 1u;
    if constexpr (kPlan.warp.ends == RowEnds::whole) {
      if (mine) {
        store(row, rows);
      }
    } else {
      if (mine && !last) {
        store(row, rows);
      }
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int t = 0; t < T; ++t) {
          // Of the warp's first group: the warp's. One row has no leading sum beside its sum.
          const bool all = kWarpOne || (starts & 1u) == 0;
          rows[r].leading[t] = all ? rows[r].sums[t] : rows[r].leading[t];
        }
      }
      add_block(starts != 0, last, row, rows);
    }
  }

  // `last`: the thread has the row that starts last in its warp.
  __device__ void add_block(bool started, bool last, unsigned row, ThreadRows<T> (&rows)[R]) const {
    const bool leads = sparse_warp == 0 && group == 0;
    bool goes_on = false;  // into the next block
    if constexpr (S > 1) {
      __shared__ float part_sums[kRowsAtOnce * S * kTile];
      __shared__ unsigned part_started[kTokenWarps * S];
      const auto parts_of = [&](int r) {
        return PartSums<G>{
            .sums = part_sums + r * S * kTile + token_warp() * (T * G) + lane_in_group(),
            .started = part_started + token_warp() * S,
            .stride = kTile,
            .count = S};
      };
#pragma unroll
      for (int first = 0; first < R; first += kRowsAtOnce) {
        if (first > 0) {
          __syncthreads();
        }
        if (group == 0) {
#pragma unroll
          for (int r = 0; r < kRowsAtOnce; ++r) {
            put_part(parts_of(r), sparse_warp, started, rows[first + r].leading);
          }
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          add_warps(parts_of(r), started, last, rows[first + r]);
        }
      }
      if constexpr (kPlan.block_reduction == Reduction::total) {
        last = last && leads;
      } else if constexpr (kBlockSplit) {
        const PartSums<G> parts = parts_of(0);
        goes_on = true;
        for (int later = sparse_warp + 1; later < S; ++later) {
          goes_on = goes_on && parts.started[later] == 0;
        }
      }
    }
    if constexpr (kBlockSplit) {
      goes_on = (goes_on || S == 1 || kPlan.block_reduction == Reduction::total) &&
                blockIdx.x + 1 < o.part_blocks &&
                !is_start(first_item(blockIdx.x + 1, o.part_table));
      if (leads && !is_start(first_item(blockIdx.x, o.part_table))) {
        put_partial(0, rows, [](const ThreadRows<T>& r, int t) { return r.leading[t]; });
      }
    }
    if (last && goes_on) {
      put_partial(1, rows, [](const ThreadRows<T>& r, int t) { return r.sums[t]; });
    } else if (last) {
      store(row, rows);
    }
  }

  // The sums of the row that starts last in the warp, and of what leads in the block.
  __device__ void add_warps(const PartSums<G>& parts, bool started, bool last,
                            ThreadRows<T>& rows) const {
    const bool leads = sparse_warp == 0 && group == 0;
    if constexpr (kPlan.block_reduction == Reduction::total) {
      if (leads) {
#pragma unroll
        for (int t = 0; t < T; ++t) {
          rows.sums[t] = block_total(parts, t);
          rows.leading[t] = rows.sums[t];
        }
      }
    } else {
      const auto add = [&](float(&sums)[T]) {
        if constexpr (kPlan.block_reduction == Reduction::bitmap) {
          block_bitmap(parts, sparse_warp, sums);
        } else {
          block_segment(parts, sparse_warp, sums);
        }
      };
      if (last) {
        add(rows.sums);
      }
      if (kBlockSplit && leads && !started) {
        add(rows.leading);
      }
    }
  }

  // --- Rows of several blocks.

  __device__ static float* partial_sums(const PlanOperands& o, unsigned block, unsigned which) {
    const unsigned long long tile = blockIdx.y;
    return o.partials + ((tile * o.part_blocks + block) * 2 + which) * kSums;
  }

  template <class Sums>
  __device__ void put_partial(unsigned which, const ThreadRows<T> (&rows)[R],
                              const Sums& sums) const {
    float* const to = partial_sums(o, blockIdx.x, which) + place;
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int t = 0; t < T; ++t) {
        to[r * kTile + token_step(t)] = sums(rows[r], t);
      }
    }
  }

  __device__ static int token_warp() { return static_cast<int>(threadIdx.x) / 32 % kTokenWarps; }
  __device__ static int lane_in_group() { return static_cast<int>(threadIdx.x) % G; }
};

// Sum i of the row of C, in tile blockIdx.y.
template <class C>
__device__ inline void store_sum(const PlanOperands& o, unsigned row, int i, float sum) {
  using Kernel = PlanKernel<C>;
  const unsigned m = row * Kernel::R + static_cast<unsigned>(i / Kernel::kTile);
  const int token = static_cast<int>(blockIdx.y) * Kernel::kTile + i % Kernel::kTile;
  if (m < o.rows && token < o.tokens) {
    round_to(sum, static_cast<typename C::Value*>(o.c)[m * o.c_row + token * o.c_token]);
  }
}

// Vector i of the zeros in rows without entries, in tile blockIdx.y.
template <class C>
__device__ inline void store_zeros(const PlanOperands& o, unsigned long long i) {
  using Kernel = PlanKernel<C>;
  constexpr int kRowVectors = Kernel::kSums / Kernel::X;
  if (i / kRowVectors >= o.empty_count) {
    return;
  }
  const int first = static_cast<int>(i % kRowVectors) * Kernel::X;
  const unsigned row =
      o.empty_rows[i / kRowVectors] * Kernel::R + static_cast<unsigned>(first / Kernel::kTile);
  if (row < o.rows) {
    Kernel::store_vector(o, row,
                         static_cast<int>(blockIdx.y) * Kernel::kTile + first % Kernel::kTile, {});
  }
}

// The product. Blocks along x: part_blocks that have parts; then those of rows without entries, a
// vector of zeros a thread. Along y: tiles of tokens.
template <class C>
__device__ inline void multiply_by_plan(const PlanOperands& o) {
  using Kernel = PlanKernel<C>;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  launch_dependents();
  wait_on_dependencies();
  if (blockIdx.x < o.part_blocks) {
    constexpr int G = Kernel::G;
    const int token_warp = warp % Kernel::kTokenWarps;
    PlanKernel<C>{.o = o,
                  .group = lane / G,
                  .sparse_warp = warp / Kernel::kTokenWarps,
                  .place = token_warp * (Kernel::T * G) + lane % G * Kernel::X}
        .multiply_parts();
    return;
  }
  const unsigned long long block = blockIdx.x - o.part_blocks;
  store_zeros<C>(o, block * Kernel::kThreads + threadIdx.x);
}

// After it, where a plan splits rows over blocks: each block has such a row, what trails in the
// block in which it starts and what leads in those after that. Along y: tiles of tokens.
template <class C>
__device__ inline void add_block_rows(const PlanOperands& o) {
  using Kernel = PlanKernel<C>;
  launch_dependents();
  wait_on_dependencies();
  const BlockRow row = o.block_rows[blockIdx.x];
  add_partial_sums<Kernel::kThreads, Kernel::kSums>(
      row.blocks,
      [&](unsigned number) {
        return Kernel::partial_sums(o, row.first_block + number, number == 0 ? 1u : 0u);
      },
      [&](int i, float sum) { store_sum<C>(o, row.row, i, sum); });
}

}  // namespace sparsellm::general_sparse
