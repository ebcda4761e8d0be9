#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/base/warp.cuh"
#include "kernels/device/cuda_types.cuh"
#include "kernels/pipeline/arrivals.cuh"
#include "kernels/pipeline/fragment_store.cuh"
#include "sparse/tiled_csl/cuda/tile_pipeline.cuh"
#include "sparse/tiled_csl/cuda/tile_wgmma_kernels.cuh"

// What becomes of the sums of tile_wgmma.cuh. Thread t of the warpgroups has kThreadUnits units of
// a row of steps: unit i is that of rows 8 i + t % 4 * 2 and the next, for tokens t / 32 * 16 +
// t % 32 / 4 and 8 more: {first row, second row} of the one, then of the other.
namespace sparsellm::tiled_csl {

__device__ inline void store_shared128(uint32_t a, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(a), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w)
               : "memory");
}

__device__ inline float4 load_shared_units(uint32_t a) {
  const uint4 v = load_shared128(a);
  return {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
}

constexpr int kStepRows = kStepTiles * kTileRows;
constexpr int kThreadUnits = kStepRows / 8;

// Threads with sums of tokens that there are: those of the first warps.
__device__ inline int threads_with_tokens(const TileParameters& p) {
  return (p.tokens + 15) / 16 * kWarp;
}

template <class T>
using PairOf = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
template <class T>
__device__ PairOf<T> pair_of(float first, float second) {
  if constexpr (std::is_same_v<T, __half>) {
    return __floats2half2_rn(first, second);
  } else {
    return __floats2bfloat162_rn(first, second);
  }
}

// Lane q of four gets what all have at index q, in the order of the lanes. By the whole warp.
__device__ inline void transpose_by_four_lanes(uint32_t (&v)[4]) {
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const bool upper = threadIdx.x & step;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t& low = v[step == 1 ? 2 * i : i];
      uint32_t& high = v[step == 1 ? 2 * i + 1 : i + 2];
      const uint32_t other = __shfl_xor_sync(~0u, upper ? low : high, step);
      low = upper ? other : low;
      high = upper ? high : other;
    }
  }
}

// Stores units of a row of steps, with the bias and ReLU, by fours: where y is aligned, as lines of
// 16 bytes. By whole warps.
template <class T>
class UnitStore {
 public:
  __device__ UnitStore(const TileParameters& p, int first_row, int thread)
      : p_(p),
        row_(first_row + thread % 4 * 2),
        token_(thread / kWarp * 16 + thread % kWarp / 4),
        by_lines_(p.y_in_lines && first_row + kStepRows <= p.rows) {}

  // v: units from `unit` on.
  __device__ void operator()(int unit, float4 (&v)[4]) const {
    if (p_.bias != nullptr) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float first = bias_of(row_ + (unit + i) * 8);
        const float second = bias_of(row_ + (unit + i) * 8 + 1);
        add(v[i], float4{first, second, first, second});
      }
    }
    store(unit, token_,
          {pair(v[0].x, v[0].y), pair(v[1].x, v[1].y), pair(v[2].x, v[2].y), pair(v[3].x, v[3].y)});
    store(unit, token_ + 8,
          {pair(v[0].z, v[0].w), pair(v[1].z, v[1].w), pair(v[2].z, v[2].w), pair(v[3].z, v[3].w)});
  }

 private:
  struct FourPairs {
    uint32_t v[4];
  };

  __device__ float bias_of(int row) const {
    return row < p_.rows ? f32_of(static_cast<const T*>(p_.bias)[row]) : 0.f;
  }
  __device__ uint32_t pair(float first, float second) const {
    const float least = p_.relu ? 0.f : -INFINITY;
    const PairOf<T> v = __hmax2_nan(pair_of<T>(first, second), pair_of<T>(least, least));
    return reinterpret_cast<const uint32_t&>(v);
  }
  __device__ void store(int unit, int token, FourPairs pairs) const {
    T* y = static_cast<T*>(p_.y) + token * p_.y_stride + row_ + unit * 8;
    if (by_lines_) {
      transpose_by_four_lanes(pairs.v);
      if (token < p_.tokens) {
        y += threadIdx.x % 4 * 6;  // row_ has 2 of 8 already
        *reinterpret_cast<uint4*>(y) = {pairs.v[0], pairs.v[1], pairs.v[2], pairs.v[3]};
      }
    } else if (token < p_.tokens) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        store_if_there(y + i * 8, row_ + (unit + i) * 8, pairs.v[i]);
      }
    }
  }
  __device__ void store_if_there(T* y, int row, uint32_t pair) const {
    const auto& v = reinterpret_cast<const PairOf<T>&>(pair);
    if (row < p_.rows) {
      y[0] = v.x;
    }
    if (row + 1 < p_.rows) {
      y[1] = v.y;
    }
  }

  const TileParameters& p_;
  int row_;
  int token_;
  bool by_lines_;
};

// The row of steps that a block ends while blocks before it have its beginning. Steps of a block
// are those of rows from the last to the first, so it comes last.
struct SharedRow {
  __device__ SharedRow(const TileParameters& p, TileRange steps)
      : begin(steps.first / p.row_tiles * p.row_tiles),
        missing(steps.end < begin + p.row_tiles ? 0 : steps.first - begin) {}

  int begin;    // its first step
  int missing;  // steps of other blocks; 0: there is no such row
};

__device__ inline float4* partial_units_of(const TileParameters& p, int block, int group_threads) {
  return p.partials + int64_t{block} * (kThreadUnits * group_threads);
}

// Adds up and stores such a row. By all threads of the block, after they have met: what it has
// itself is at `own` in shared memory by then, unit i of thread t number i * threads + t.
template <class T>
__device__ void add_up_shared_row(const TileParameters& p, const SharedRow& row, uint32_t own,
                                  int group_threads) {
  int first_block = blockIdx.x;
  for (int missing = row.missing; missing > 0;) {
    --first_block;
    missing -= first_tile_of(p, first_block + 1) - first_tile_of(p, first_block);
    if (threadIdx.x == (blockIdx.x - first_block) % blockDim.x) {
      wait_arrived(p.arrivals + first_block);
      p.arrivals[first_block] = 0;
    }
  }
  __syncthreads();
  // As many warps for each warp's units as there are.
  const int threads = threads_with_tokens(p);
  const int thread = threadIdx.x % threads;
  const int of_units = threadIdx.x / threads;
  const int warps_of_units = blockDim.x / threads;
  constexpr int kAtOnce = 2;  // blocks whose units are being loaded
  const UnitStore<T> store(p, row.begin / p.row_tiles * kStepRows, thread);
  for (int unit = of_units < warps_of_units ? of_units * 4 : kThreadUnits; unit < kThreadUnits;
       unit += warps_of_units * 4) {
    float4 sums[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[i] = load_shared_units(own + ((unit + i) * threads + thread) * 16);
    }
    for (int block = blockIdx.x - 1; block >= first_block; block -= kAtOnce) {
      float4 v[kAtOnce][4];
#pragma unroll
      for (int b = 0; b < kAtOnce; ++b) {
        const float4* const from =
            partial_units_of(p, max(block - b, first_block), group_threads) + thread;
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

}  // namespace sparsellm::tiled_csl
