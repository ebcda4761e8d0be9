#pragma once

#include <cstdint>

#include "kernels/base/pdl.cuh"
#include "kernels/base/warp.cuh"
#include "kernels/pipeline/arrivals.cuh"
#include "kernels/pipeline/fragment_store.cuh"
#include "sparse/tiled_csl/cuda/tile_pipeline.cuh"

// How thread blocks with shares of steps (Stream-K) add up what they have of a row of steps in
// common. A thread that multiplies has the sums of a row as units of four, which it stores at the
// same number as each other thread does in its block.
namespace sparsellm::tiled_csl {

__device__ inline void store_shared128(uint32_t a, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(a), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w)
               : "memory");
}
__device__ inline float4 load_shared_unit(uint32_t a) {
  const uint4 v = load_shared128(a);
  return {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
}

// The row of steps that a block ends while blocks before it have its beginning. Steps of a block
// are those of rows from the last to the first, so it comes last.
struct SharedRow {
  __device__ SharedRow(const TileParameters& p, TileRange steps)
      : begin(steps.first / p.row_tiles * p.row_tiles),
        missing(steps.end < begin + p.row_tiles ? 0 : steps.first - begin) {}

  int begin;    // its first step
  int missing;  // steps of other blocks; 0: there is no such row
};

// What a block has of such a row: units 0 to `units` - 1, a multiple of 4, of the first `threads`
// threads. Unit i of thread t is number i * threads + t.
struct RowUnits {
  int units;
  int threads;
  int most;  // of all units that a row of any number of tokens has

  __device__ float4* of_block(const TileParameters& p, int block) const {
    return p.partials + int64_t{block} * most;
  }
};

// Adds up such a row and has store(unit, its sums and those of three more) store it. By all threads
// of the block, after finish_row(): what the block has itself is at `own` in shared memory.
template <class MakeStore>
__device__ void add_up_shared_row(const TileParameters& p, const SharedRow& row, uint32_t own,
                                  const RowUnits& units, MakeStore&& make_store) {
  wait_on_dependencies();  // arrivals are the launch before's until it ends
  int first_block = blockIdx.x;
  for (int missing = row.missing; missing > 0;) {
    --first_block;
    missing -= first_tile_of(p, first_block + 1) - first_tile_of(p, first_block);
    // Threads that do not multiply, as long as there are any: they are here before the others.
    if (threadIdx.x == blockDim.x - 1 - (blockIdx.x - first_block) % blockDim.x) {
      wait_arrived(p.arrivals + first_block);
      p.arrivals[first_block] = 0;
    }
  }
  __syncthreads();
  __syncthreads();  // racecheck misses the first where warps come to it long before others
  // As many warps for each warp's units as there are.
  const int threads = units.threads;
  const int thread = threadIdx.x % threads;
  const int of_units = threadIdx.x / threads;
  const int warps_of_units = blockDim.x / threads;
  constexpr int kAtOnce = 2;  // blocks whose units are being loaded
  const auto store = make_store(thread);
  for (int unit = of_units < warps_of_units ? of_units * 4 : units.units; unit < units.units;
       unit += warps_of_units * 4) {
    float4 sums[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[i] = load_shared_unit(own + ((unit + i) * threads + thread) * 16);
    }
    for (int block = blockIdx.x - 1; block >= first_block; block -= kAtOnce) {
      float4 v[kAtOnce][4];
#pragma unroll
      for (int b = 0; b < kAtOnce; ++b) {
        const float4* const from = units.of_block(p, max(block - b, first_block)) + thread;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          v[b][i] = __ldcg(from + (unit + i) * threads);
        }
      }
#pragma unroll
      for (int b = 0; b < kAtOnce; ++b) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (block - b >= first_block) {
            add(sums[i], v[b][i]);
          }
        }
      }
    }
    store(unit, sums);
  }
}

// What the threads that multiply do with the sums of a row: those of a row whose end is another
// block's are left for it; those of a row whose beginning is another's go to `own` in shared
// memory, for add_up_shared_row(); the rest is stored. unit_of(i): unit i of this thread. A barrier
// of the kThreads that multiply is number 1. What lies at `own` is theirs: nothing else writes
// there after the last step has its tiles.
template <int kThreads, int kUnits, class UnitOf, class MakeStore>
__device__ void finish_row(const TileParameters& p, int row_begin, TileRange of_row, uint32_t own,
                           const RowUnits& units, UnitOf&& unit_of, MakeStore&& make_store) {
  const int thread = threadIdx.x;
  const bool has_units = thread < units.threads;
  const auto threads_meet = [] { asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory"); };
  if (of_row.end < row_begin + p.row_tiles) {
    if (has_units) {
      float4* const to = units.of_block(p, blockIdx.x) + thread;
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        if (i < units.units) {
          __stcg(to + i * units.threads, unit_of(i));
        }
      }
    }
    threads_meet();
    if (thread == 0) {
      set_arrived(p.arrivals + blockIdx.x);
    }
  } else if (of_row.first > row_begin) {
    threads_meet();  // the products that read shared memory have ended
    if (has_units) {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        if (i < units.units) {
          store_shared128(own + (i * units.threads + thread) * 16, unit_of(i));
        }
      }
    }
  } else if (has_units) {
    const auto store = make_store(thread);
#pragma unroll
    for (int i = 0; i < kUnits; i += 4) {
      if (i < units.units) {
        float4 v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          v[j] = unit_of(i + j);
        }
        store(i, v);
      }
    }
  }
}

}  // namespace sparsellm::tiled_csl
