#pragma once

#include <cuda.h>

#include <cmath>
#include <cstdint>

#include "kernels/base/pdl.cuh"
#include "kernels/base/warp.cuh"
#include "kernels/device/async_copy.cuh"
#include "kernels/device/cuda_types.cuh"
#include "kernels/device/wgmma.cuh"
#include "kernels/pipeline/ring.cuh"
#include "sparse/tiled_csl/cuda/tile_gemm_kernels.cuh"
#include "sparse/tiled_csl/cuda/tile_pair.cuh"
#include "sparse/tiled_csl/cuda/tile_pipeline.cuh"
#include "sparse/tiled_csl/cuda/tile_shared_row.cuh"
#include "sparse/tiled_csl/cuda/tile_stages.cuh"

// Products of many tokens with a weight in the layout of tile_record.h: each tile is extracted once
// for 256 of them. Compiled for sm_90a alone.
//
// A step is a tile of 128 x 64 and the same 64 columns of x for 256 tokens. A warp extracts the
// tiles of its stage; when the step that had the stage has been multiplied, it first starts the
// copy of x to where that step had it, for the step whose turn that is. x has the order of columns
// of tile_record.h, which tile_gemm_cuda() has made. Two warpgroups multiply 64 rows each,
// with both operands in shared memory. Rows of steps are those of tiles, one for each 256 tokens;
// thread blocks have equal shares of all steps (Stream-K, Osama et al. 2023).
namespace sparsellm::tiled_csl {

struct GemmBarriers {
  uint64_t pieces[kGemmStages * kMaxSlots];
  uint64_t full[kGemmStages];   // the tile has its nonzeros
  uint64_t x[kGemmStages];      // x of a step is there
  uint64_t empty[kGemmStages];  // the step has been multiplied
};
static_assert(sizeof(GemmBarriers) == kGemmStaticBytes);

// Every stride-th step of a range, from number `from` on.
class GemmSteps {
 public:
  __device__ GemmSteps(const GemmParameters& p, TileRange steps, int from, int stride)
      : steps_(steps, p.tile.row_tiles, from, stride),
        row_tiles_(p.tile.row_tiles),
        token_tiles_(p.token_tiles) {}
  __device__ bool done() const { return steps_.done(); }
  __device__ int tile() const {
    return steps_.row_begin() / row_tiles_ / token_tiles_ * row_tiles_ + steps_.column();
  }
  __device__ int first_token() const {
    return steps_.row_begin() / row_tiles_ % token_tiles_ * kGemmTokens;
  }
  __device__ int column() const { return steps_.column(); }
  __device__ void advance(int steps = 1) { steps_.advance(steps); }

 private:
  TileCursor steps_;
  int row_tiles_;
  int token_tiles_;
};

// The units of a row of steps: unit i of thread t has rows t / 32 * 16 + t % 32 / 4 and 8 more for
// tokens 8 i + t % 4 * 2 and the next: {first token, second token} of the one row, then the other.
constexpr int kGemmUnits = kGemmTokens / 8;

// Stores units, with the bias and ReLU: where y is aligned, 16 rows of a token as lines of 32
// bytes. By whole warps.
template <class T>
class GemmStore {
 public:
  __device__ GemmStore(const GemmParameters& p, int row_of_steps, int thread)
      : p_(p.tile),
        first_row_(row_of_steps / p.token_tiles * kTileRows + thread / kWarp * 16),
        token_(row_of_steps % p.token_tiles * kGemmTokens + thread % kWarp / 4),
        by_lines_(p_.y_in_lines && first_row_ + 16 <= p_.rows) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first_row_ + thread % kWarp / 4 + 8 * i;
      bias_[i] =
          p_.bias == nullptr || row >= p_.rows ? 0.f : f32_of(static_cast<const T*>(p_.bias)[row]);
    }
  }

  // v: units from `unit` on.
  __device__ void operator()(int unit, const float4 (&v)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Now t % 32 / 4 is a token's, and the pairs are those of rows.
      const uint32_t upper = transposed(pair(v[i].x + bias_[0], v[i].y + bias_[0]));
      const uint32_t lower = transposed(pair(v[i].z + bias_[1], v[i].w + bias_[1]));
      store(token_ + (unit + i) * 8, upper, lower);
    }
  }

 private:
  __device__ uint32_t pair(float first, float second) const {
    return bits_of_pair<T>(first, second, p_.relu ? 0.f : -INFINITY);
  }
  // A matrix of 8 x 8 elements of which each lane has two neighbours.
  static __device__ uint32_t transposed(uint32_t v) {
    uint32_t d;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(v));
    return d;
  }
  __device__ void store(int token, uint32_t upper, uint32_t lower) const {
    const int q = threadIdx.x % 4;
    T* const y = static_cast<T*>(p_.y) + token * p_.y_stride + first_row_;
    if (by_lines_) {
      // Lane q of four gets rows 4 q to 4 q + 3 of 16.
      const int from = threadIdx.x % kWarp / 4 * 4 + q % 2 * 2;
      const uint32_t u0 = __shfl_sync(~0u, upper, from);
      const uint32_t u1 = __shfl_sync(~0u, upper, from + 1);
      const uint32_t l0 = __shfl_sync(~0u, lower, from);
      const uint32_t l1 = __shfl_sync(~0u, lower, from + 1);
      if (token < p_.tokens) {
        *reinterpret_cast<uint2*>(y + q * 4) = q < 2 ? uint2{u0, u1} : uint2{l0, l1};
      }
    } else if (token < p_.tokens) {
      store_if_there(y, q * 2, upper);
      store_if_there(y, q * 2 + 8, lower);
    }
  }
  __device__ void store_if_there(T* y, int row, uint32_t pair) const {
    const auto& v = reinterpret_cast<const PairOf<T>&>(pair);
    if (first_row_ + row < p_.rows) {
      y[row] = v.x;
    }
    if (first_row_ + row + 1 < p_.rows) {
      y[row + 1] = v.y;
    }
  }

  const TileParameters& p_;
  int first_row_;
  int token_;
  bool by_lines_;
  float bias_[2];
};

// What a block has of a row of steps, of tokens that there are.
__device__ inline RowUnits gemm_units(const GemmParameters& p, int row_of_steps) {
  const int tokens = p.tile.tokens - row_of_steps % p.token_tiles * kGemmTokens;
  return {.units = min((tokens + 31) / 32 * 4, kGemmUnits),
          .threads = kGemmGroupThreads,
          .most = kGemmUnits * kGemmGroupThreads};
}

// A warpgroup, for 64 rows of each tile.
template <class T>
__device__ void multiply_tiles(const GemmParameters& p, GemmBarriers& barriers, uint32_t tiles,
                               uint32_t x, TileRange steps) {
  const int group = threadIdx.x / 128;
  const uint32_t full = shared_address(barriers.full);
  const uint32_t empty = shared_address(barriers.empty);
  const uint32_t a = swizzled_operand(tiles + group * (kTileBytes / 2));
  const uint32_t b = swizzled_operand(x);
  const uint32_t x_there = shared_address(barriers.x);
  Ring ring{kGemmStages, 0};
  Ring x_ring{p.x_stages, 0};
  for (TileCursor cursor(steps, p.tile.row_tiles, 0, 1); !cursor.done(); cursor.skip_row()) {
    const TileRange of_row = cursor.row_range();
    float sums[kGemmTokens / 2];
#pragma unroll
    for (float& sum : sums) {
      sum = 0.f;
    }
    int before = -1;  // the stage whose products may still run
    const auto release = [&] {
      if (before >= 0 && threadIdx.x % kWarp == 0) {
        barrier_arrive(empty + before * 8);
      }
    };
#pragma unroll 1
    for (int step = of_row.first; step < of_row.end; ++step) {
      barrier_wait(x_there + x_ring.stage * 8, x_ring.parity);
      barrier_wait(full + ring.stage * 8, ring.parity);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kTileColumns / 16; ++k) {
        wgmma<T>(sums, a + ring.stage * (kTileBytes / 16) + 2 * k,
                 b + x_ring.stage * (kGemmTokenBytes / 16) + 2 * k);
      }
      wgmma_commit();
      wgmma_wait<1>();
      release();
      before = ring.stage;
      ring.advance();
      x_ring.advance();
    }
    wgmma_wait<0>();
    release();
    const int row_of_steps = cursor.row_begin() / p.tile.row_tiles;
    finish_row<kGemmGroupThreads, kGemmUnits>(
        p.tile, cursor.row_begin(), of_row, tiles, gemm_units(p, row_of_steps),
        [&](int unit) {
          return float4{sums[4 * unit], sums[4 * unit + 1], sums[4 * unit + 2], sums[4 * unit + 3]};
        },
        [&](int thread) { return GemmStore<T>(p, row_of_steps, thread); });
  }
}

// One block on a multiprocessor. Shared memory, from a multiple of 1,024 bytes on: tiles, x of the
// stages, then the slots of each tile. x: in the order of tile_record.h, boxes of 256 tokens.
template <class T>
__global__ void __launch_bounds__(kGemmThreads)
    tile_gemm_kernel(const __grid_constant__ GemmParameters p,
                     const __grid_constant__ CUtensorMap x) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ uint8_t memory[];
  __shared__ GemmBarriers barriers;
  const int warp = uniform_warp();
  const uint32_t tiles = (shared_address(memory) + 1023) / 1024 * 1024;
  const uint32_t x_stages = tiles + kGemmStages * kTileBytes;
  const uint32_t slots = x_stages + p.x_stages * kGemmTokenBytes;
  if (threadIdx.x < kGemmStages) {
    for (int slot = 0; slot < p.tile.slots; ++slot) {
      barrier_init(shared_address(barriers.pieces + threadIdx.x * p.tile.slots + slot), 1);
    }
    barrier_init(shared_address(barriers.full + threadIdx.x), 1);
    barrier_init(shared_address(barriers.x + threadIdx.x), 1);
    barrier_init(shared_address(barriers.empty + threadIdx.x), kGemmGroupThreads / kWarp);
  }
  barriers_ready();
  __syncthreads();
  launch_dependents();
  const TileRange range{first_tile_of(p.tile, blockIdx.x), first_tile_of(p.tile, blockIdx.x + 1)};
  if (warp < kGemmGroupThreads / kWarp) {
    increase_registers<kGemmGroupRegisters>();
    wait_on_dependencies();
    multiply_tiles<T>(p, barriers, tiles, x_stages, range);
  } else {
    decrease_registers<kGemmExtractorRegisters>();
    const int stage = warp - kGemmGroupThreads / kWarp;
    const uint32_t empty = shared_address(barriers.empty + stage);
    GemmSteps x_step(p, range, stage, kGemmStages);
    int x_stage = stage;
    const auto copy_x = [&] {
      if (!x_step.done() && threadIdx.x % kWarp == 0) {
        const uint32_t there = shared_address(barriers.x + x_stage);
        barrier_expect(there, kGemmTokenBytes);
        bulk_load_box(x_stages + x_stage * kGemmTokenBytes, &x, x_step.column() * kTileColumns,
                      x_step.first_token(), there);
      }
    };
    bool first = true;
    const uint32_t parity = extract_tiles<1, true>(
        p.tile, GemmSteps(p, range, stage, kGemmStages),
        {.tile = tiles + stage * kTileBytes,
         .slots = slots + stage * p.tile.slots * p.tile.slot_bytes,
         .pieces = shared_address(barriers.pieces + stage * p.tile.slots),
         .full = shared_address(barriers.full + stage),
         .empty = empty},
        [&] {
          if (first) {
            first = false;
            wait_on_dependencies();  // x is put in order by the launch before
            if (stage < p.x_stages) {
              copy_x();
            }
            x_step = GemmSteps(p, range, stage + p.x_stages, kGemmStages);
            x_stage = stage % p.x_stages;
            return;
          }
          copy_x();
          x_step.advance();
          x_stage = (x_stage + kGemmStages) % p.x_stages;
        });
    if (!first && !x_step.done()) {
      barrier_wait(empty, parity);
      copy_x();
    }
  }
  const SharedRow shared_row(p.tile, range);
  if (shared_row.missing > 0) {
    const int row_of_steps = shared_row.begin / p.tile.row_tiles;
    add_up_shared_row(p.tile, shared_row, tiles, gemm_units(p, row_of_steps),
                      [&](int thread) { return GemmStore<T>(p, row_of_steps, thread); });
  }
#endif
}

}  // namespace sparsellm::tiled_csl
