#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/base/warp.cuh"
#include "kernels/device/cuda_types.cuh"
#include "kernels/pipeline/fragment_store.cuh"
#include "sparse/tiled_csl/cuda/tile_pair.cuh"
#include "sparse/tiled_csl/cuda/tile_pipeline.cuh"
#include "sparse/tiled_csl/cuda/tile_shared_row.cuh"
#include "sparse/tiled_csl/cuda/tile_wgmma_kernels.cuh"

// What becomes of the sums of tile_wgmma.cuh. Thread t of the warpgroups has kThreadUnits units of
// a row of steps: unit i is that of rows 8 i + t % 4 * 2 and the next, for tokens t / 32 * 16 +
// t % 32 / 4 and 8 more: {first row, second row} of the one, then of the other.
namespace sparsellm::tiled_csl {

constexpr int kStepRows = kStepTiles * kTileRows;
constexpr int kThreadUnits = kStepRows / 8;

// Of tokens that there are, which the first warps have.
__device__ inline RowUnits step_units(const TileParameters& p, int group_threads) {
  return {.units = kThreadUnits,
          .threads = (p.tokens + 15) / 16 * kWarp,
          .most = kThreadUnits * group_threads};
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
class StepStore {
 public:
  __device__ StepStore(const TileParameters& p, int first_row, int thread)
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
    return bits_of_pair<T>(first, second, p_.relu ? 0.f : -INFINITY);
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

}  // namespace sparsellm::tiled_csl
