#pragma once

#include <cstdint>

#include "kernels/base/pdl.cuh"
#include "kernels/base/warp.cuh"
#include "kernels/device/async_copy.cuh"
#include "kernels/device/cuda_types.cuh"
#include "kernels/device/wgmma.cuh"
#include "kernels/pipeline/ring.cuh"
#include "sparse/tiled_csl/cuda/tile_pipeline.cuh"
#include "sparse/tiled_csl/cuda/tile_stages.cuh"
#include "sparse/tiled_csl/cuda/tile_step_sums.cuh"
#include "sparse/tiled_csl/cuda/tile_wgmma_kernels.cuh"

// Products of more tokens with a weight in the layout of tile_record.h, each tile extracted once
// for up to 128 of them. Compiled for sm_90a alone.
//
// A thread block works in steps over K: two tiles, one below the other, and the columns of x that
// both take. Extracting warps, one or two for a tile, have slots for pieces as in tile_matmul.cuh
// and take the steps of the block in turn. Warpgroups of 64 tokens multiply both tiles of a step by
// x, with a tile as the second operand of wgmma, [128 rows, 64 columns] in shared memory, and x as
// the first, in registers. That x is read once for two tiles halves what comes from the L2.
//
// Thread blocks have equal shares of the steps (Stream-K, Osama et al. 2023), the last rows first;
// what blocks have of two rows of tiles in common is added up by the one that has their end.
namespace sparsellm::tiled_csl {

constexpr int kMaxStages = kMaxWarps / kStepTiles;

struct WgmmaBarriers {
  uint64_t pieces[kMaxWarps * kMaxSlots];
  uint64_t full[kMaxStages];   // the tiles of a step have their nonzeros
  uint64_t empty[kMaxStages];  // no warpgroup needs them any more
};

static_assert(sizeof(WgmmaBarriers) == kStaticBytes);
static_assert(kWgmmaTiles > kStepTiles, "one step is waited for while another is multiplied");

// One tile of every stride-th step of a range of steps, from number `from` on. Where there is no
// second row of tiles the first stands in, whose products nobody stores.
class StepTiles {
 public:
  __device__ StepTiles(const TileParameters& p, TileRange steps, int from, int stride, int which)
      : steps_(steps, p.row_tiles, from, stride),
        row_tiles_(p.row_tiles),
        last_row_((p.rows - 1) / kTileRows),
        which_(which) {}
  __device__ bool done() const { return steps_.done(); }
  __device__ int tile() const {
    const int row = min(steps_.row_begin() / row_tiles_ * kStepTiles + which_, last_row_);
    return row * row_tiles_ + steps_.column();
  }
  __device__ void advance(int steps = 1) { steps_.advance(steps); }

 private:
  TileCursor steps_;
  int row_tiles_;
  int last_row_;
  int which_;
};

// The warpgroup of 64 tokens. kFast: rows of x begin at multiples of 16 bytes, and end with a tile.
//
// One warp of a scheduler has all instructions between the products of two steps: what can be
// computed once, or while products are under way, is. With one warpgroup the first products of a
// step may be issued before those of the step before have ended, whose tiles are given back right
// after. It costs more than it saves where extraction takes longer than products. Giving them back
// before that where the step is not there yet takes a test that all warps agree on, at 5 to 8 % of
// the kernel's time. Two warpgroups, which have no registers for it, keep the tensor cores busy by
// turns.
template <class T, int kGroups, bool kFast>
class TileGroup {
 public:
  __device__ TileGroup(const TileParameters& p, WgmmaBarriers& barriers, uint32_t tiles, int stages)
      : p_(p),
        full_(computed_once(shared_address(barriers.full))),
        empty_(computed_once(shared_address(barriers.empty))),
        tiles_(computed_once(swizzled_operand(tiles))),
        stages_(stages),
        lane_(threadIdx.x % kWarp),
        zero_(computed_once(static_cast<uint32_t>(p.tokens) >> 31)) {
    const int first_token = static_cast<int>(threadIdx.x) / kWarp * 16 + lane_ / 4;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      x_[t] = computed_once(static_cast<const T*>(p.x) +
                            min(first_token + 8 * t, p.tokens - 1) * p.x_stride + lane_ % 4 * 16);
    }
  }

  __device__ void run(TileRange steps) {
    Ring ring{stages_, 0};
    for (TileCursor cursor(steps, p_.row_tiles, 0, 1); !cursor.done(); cursor.skip_row()) {
      const TileRange of_row = cursor.row_range();
      int column = of_row.first - cursor.row_begin();
      const int end = of_row.end - cursor.row_begin();
      Columns x[kAhead];  // of the next steps: it comes from the L2
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        load(x[i], column + i, end);
      }
      Operand a[kAhead]{};
      Sums sums;
#pragma unroll
      for (auto& of_tile : sums) {
#pragma unroll
        for (float& sum : of_tile) {
          sum = 0.f;
        }
      }
#pragma unroll 1
      while (column < end) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          if (i == 0 || column < end) {
            multiply(sums, a[i], a[(i + 1) % kAhead], x[i], column + kAhead, end, ring);
            ++column;
          }
        }
      }
      wgmma_wait<0>();
#pragma unroll
      for (const Operand& last : a) {
        done_with(last);
      }
      release();
      finish(cursor.row_begin(), of_row, sums);
    }
  }

 private:
  static constexpr int kSums = kTileRows / 2;  // of a thread and a tile
  static constexpr int kThreads = kGroups * kGroupThreads;
  static constexpr int kAhead = kGroups == 1 ? 2 : 1;  // by the registers

  using Columns = uint32_t[2][8];  // of two tokens, in pairs
  using Operand = uint32_t[4][4];
  using Sums = float[kStepTiles][kSums];

  // By x; after that x is that of tile column `next`, if that is before the end. a: x as the first
  // operand, which products read until they have ended; `before`: that of the step before.
  __device__ void multiply(Sums& sums, Operand& a, const Operand& before, Columns& x, int next,
                           int end, Ring& ring) {
    // A product takes four registers in a row, two of each token. Were these copies, the compiler
    // would make them where x is loaded, and wait for it there. All come before the first product:
    // registers that change between two of them part them.
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        asm volatile("xor.b32 %0, %1, %2;"
                     : "=r"(a[k][r])
                     : "r"(x[r % 2][2 * k + r / 2]), "r"(zero_));
      }
    }
    const uint32_t tile = tiles_ + ring.stage * (kStepTiles * kTileBytes / 16);
    barrier_wait(full_ + ring.stage * 8, ring.parity);
    wgmma_fence();
    const auto step_of_16 = [&](int k) {
#pragma unroll
      for (int i = 0; i < kStepTiles; ++i) {
        wgmma<T>(sums[i], a[k], tile + i * (kTileBytes / 16) + 2 * k);
      }
    };
    if constexpr (kAhead == 1) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        step_of_16(k);
      }
      wgmma_commit();
      load(x, next, end);
      to_release_ = empty_ + ring.stage * 8;
      wgmma_wait<0>();
      done_with(a);
      release();
    } else {
      step_of_16(0);
      wgmma_commit();
      wgmma_wait<1>();
      done_with(before);
      release();
#pragma unroll
      for (int k = 1; k < 4; ++k) {
        step_of_16(k);
      }
      wgmma_commit();
      load(x, next, end);
      to_release_ = empty_ + ring.stage * 8;
      if (!p_.stage_ahead) {
        wgmma_wait<0>();
        done_with(a);
        release();
      }
    }
    ring.advance();
  }
  __device__ void done_with(const Operand& a) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      keep_until_here(a[k], zero_ != 0, full_ + 16 * k);
    }
  }
  // The stage whose products were the last to end, unless that has been said.
  __device__ void release() {
    if (to_release_ != 0 && lane_ == 0) {
      barrier_arrive(to_release_);
    }
    to_release_ = 0;
  }

  // 16 columns of two tokens, 8 apart (tile_record.h): for a warp, the first operand of four steps
  // of 16. Of tokens after the last, and from the end on, anything. Loads without a condition
  // go to where the values stay until multiply() puts those of two tokens side by side: nothing
  // waits for them before.
  __device__ void load(Columns& x, int tile_column, int end) const {
    const int column = min(tile_column, end - 1) * kTileColumns;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const T* const from = x_[t] + column;
      if constexpr (kFast) {
        load_columns(x[t], from);
      } else {
        load_some_columns(x[t], reinterpret_cast<const uint16_t*>(from),
                          p_.columns - column - lane_ % 4 * 16);
      }
    }
  }

  __device__ void finish(int row_begin, TileRange of_row, const Sums& sums) const {
    finish_row<kThreads, kThreadUnits>(
        p_, row_begin, of_row, (tiles_ & 0x3fff) << 4, step_units(p_, kThreads),
        [&](int unit) {
          const float* const sum = &sums[unit * 4 / kSums][unit * 4 % kSums];
          return float4{sum[0], sum[1], sum[2], sum[3]};
        },
        [&](int thread) { return StepStore<T>(p_, row_begin / p_.row_tiles * kStepRows, thread); });
  }

  const TileParameters& p_;
  uint32_t full_;
  uint32_t empty_;
  uint32_t tiles_;
  int stages_;
  int lane_;
  uint32_t zero_;            // which the compiler does not know
  const T* x_[2];            // of the two tokens
  uint32_t to_release_ = 0;  // barrier of the stage before, 0: none
};

// One block on a multiprocessor. Shared memory, from a multiple of 1,024 bytes on: the tiles, then
// the slots of each.
template <class T, int kGroups, bool kFast, int kThreads>
__global__ void __launch_bounds__(kThreads)
    tile_wgmma_kernel(const __grid_constant__ TileParameters p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ uint8_t memory[];
  __shared__ WgmmaBarriers barriers;
  constexpr int kGroupWarps = kGroups * kGroupThreads / kWarp;
  constexpr int kParts = tile_parts(kGroups);
  const int in_flight = (blockDim.x / kWarp - kGroupWarps) / kParts;  // tiles
  const int stages = in_flight / kStepTiles;
  const int warp = uniform_warp();
  const uint32_t tiles = (shared_address(memory) + 1023) / 1024 * 1024;
  if (threadIdx.x < static_cast<unsigned>(in_flight)) {
    for (int slot = 0; slot < p.slots; ++slot) {
      barrier_init(shared_address(barriers.pieces + threadIdx.x * p.slots + slot), 1);
    }
  }
  if (threadIdx.x < static_cast<unsigned>(stages)) {
    barrier_init(shared_address(barriers.full + threadIdx.x), kStepTiles);
    barrier_init(shared_address(barriers.empty + threadIdx.x), kGroupWarps);
  }
  barriers_ready();
  __syncthreads();
  launch_dependents();
  const TileRange range{first_tile_of(p, blockIdx.x), first_tile_of(p, blockIdx.x + 1)};
  // Sums and x take more registers than places of nonzeros do.
  if (warp < kGroupWarps) {
    increase_registers<group_registers(kGroups)>();
    wait_on_dependencies();
    TileGroup<T, kGroups, kFast>(p, barriers, tiles, stages).run(range);
  } else {
    decrease_registers<kExtractorRegisters>();
    const int mine = (warp - kGroupWarps) / kParts;
    const int stage = mine / kStepTiles;
    extract_tiles<kParts, kGroups == 1>(
        p, StepTiles(p, range, stage, stages, mine % kStepTiles),
        {.tile = tiles + mine * kTileBytes,
         .slots = tiles + in_flight * kTileBytes + mine * p.slots * p.slot_bytes,
         .pieces = shared_address(barriers.pieces + mine * p.slots),
         .full = shared_address(barriers.full + stage),
         .empty = shared_address(barriers.empty + stage),
         .part = (warp - kGroupWarps) % kParts,
         .meeting = mine + 2},
        [] {});
  }
  const SharedRow shared_row(p, range);
  if (shared_row.missing > 0) {
    add_up_shared_row(p, shared_row, tiles, step_units(p, kGroups * kGroupThreads),
                      [&](int thread) {
                        return StepStore<T>(p, shared_row.begin / p.row_tiles * kStepRows, thread);
                      });
  }
#endif
}

}  // namespace sparsellm::tiled_csl
