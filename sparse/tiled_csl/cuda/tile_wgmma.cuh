#pragma once

#include <cstdint>

#include "kernels/base/pdl.cuh"
#include "kernels/base/warp.cuh"
#include "kernels/device/async_copy.cuh"
#include "kernels/device/cuda_types.cuh"
#include "kernels/device/wgmma.cuh"
#include "kernels/pipeline/arrivals.cuh"
#include "sparse/tiled_csl/cuda/tile_pipeline.cuh"
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
// Between the products of two steps the tensor cores are idle, and one warp of a scheduler has
// instructions for them: what can be computed once, or while products are under way, is.
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
        first_token_(threadIdx.x / kWarp * 16 + lane_ / 4),
        zero_(computed_once(static_cast<uint32_t>(p.tokens) >> 31)) {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      x_[t] = computed_once(static_cast<const T*>(p.x) +
                            min(first_token_ + 8 * t, p.tokens - 1) * p.x_stride + lane_ % 4 * 16);
    }
  }

  __device__ void run(TileRange steps) {
    Stage stage;
    for (TileCursor cursor(steps, p_.row_tiles, 0, 1); !cursor.done(); cursor.skip_row()) {
      const TileRange of_row = cursor.row_range();
      int column = of_row.first - cursor.row_begin();
      const int end = of_row.end - cursor.row_begin();
      Columns x[kAhead];  // of the next steps: it comes from the L2
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        load(x[i], column + i, end);
      }
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
            multiply(sums, x[i], column + kAhead, end, stage);
            ++column;
          }
        }
      }
      finish(cursor.row_begin(), of_row, sums);
    }
  }

 private:
  static constexpr int kSums = kTileRows / 2;  // of a thread and a tile
  static constexpr int kThreads = kGroups * kGroupThreads;
  static constexpr int kAhead = kGroups == 1 ? 2 : 1;  // by the registers

  using Columns = uint32_t[2][8];  // of two tokens, in pairs
  using Sums = float[kStepTiles][kSums];

  struct Stage {
    int index = 0;
    uint32_t parity = 0;
  };

  // By x; after that x is that of tile column `next`, if that is before the end.
  __device__ void multiply(Sums& sums, Columns& x, int next, int end, Stage& stage) const {
    // A product takes four registers in a row, two of each token. Were these copies, the compiler
    // would make them where x is loaded, and wait for it there. All come before the first product:
    // registers that change between two of them part them.
    uint32_t a[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        asm volatile("xor.b32 %0, %1, %2;"
                     : "=r"(a[k][r])
                     : "r"(x[r % 2][2 * k + r / 2]), "r"(zero_));
      }
    }
    const uint32_t tile = tiles_ + stage.index * (kStepTiles * kTileBytes / 16);
    const uint32_t empty = empty_ + stage.index * 8;
    barrier_wait(full_ + stage.index * 8, stage.parity);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int i = 0; i < kStepTiles; ++i) {
        wgmma<T>(sums[i], a[k], tile + i * (kTileBytes / 16) + 2 * k);
      }
    }
    wgmma_commit();
    load(x, next, end);
    if (++stage.index == stages_) {
      stage.index = 0;
      stage.parity ^= 1;
    }
    wgmma_wait<0>();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      keep_until_here(a[k], zero_ != 0, full_ + 16 * k);
    }
    if (lane_ == 0) {
      barrier_arrive(empty);
    }
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

  __device__ void threads_meet() const {
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
  }
  __device__ float4* partial_of(int block) const {
    return p_.partials + int64_t{block} * (kStepTiles * kSums / 4 * kThreads) + threadIdx.x;
  }
  // body(number of four sums of this thread, the first of them)
  template <class Body>
  __device__ static void for_each_four(Sums& sums, Body&& body) {
#pragma unroll
    for (int i = 0; i < kStepTiles; ++i) {
#pragma unroll
      for (int j = 0; j < kSums; j += 4) {
        body((i * kSums + j) / 4, &sums[i][j]);
      }
    }
  }

  // While sums are stored nothing is multiplied: it takes few instructions.
  __device__ void finish(int row_begin, TileRange of_row, Sums& sums) const {
    if (of_row.end < row_begin + p_.row_tiles) {
      leave(sums);
      return;
    }
    for (int missing = of_row.first - row_begin, block = static_cast<int>(blockIdx.x) - 1;
         missing > 0; --block) {
      missing -= first_tile_of(p_, block + 1) - first_tile_of(p_, block);
      if (threadIdx.x == 0) {
        wait_arrived(p_.arrivals + block);
        p_.arrivals[block] = 0;
      }
      threads_meet();
      add_to(sums, partial_of(block));
    }
    store(row_begin / p_.row_tiles * (kStepTiles * kTileRows), sums);
  }
  // As many loads are under way as there are registers.
  __device__ void add_to(Sums& sums, const float4* from) const {
    constexpr int kAtOnce = 8;
    float* const sum = &sums[0][0];
#pragma unroll
    for (int first = 0; first < kStepTiles * kSums / 4; first += kAtOnce) {
      float4 v[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        v[i] = __ldcg(from + (first + i) * kThreads);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        sum[(first + i) * 4] += v[i].x;
        sum[(first + i) * 4 + 1] += v[i].y;
        sum[(first + i) * 4 + 2] += v[i].z;
        sum[(first + i) * 4 + 3] += v[i].w;
      }
    }
  }
  __device__ void leave(Sums& sums) const {
    float4* const to = partial_of(blockIdx.x);
    for_each_four(sums, [&](int i, const float* sum) {
      __stcg(to + i * kThreads, float4{sum[0], sum[1], sum[2], sum[3]});
    });
    __threadfence();
    threads_meet();
    if (threadIdx.x == 0) {
      set_arrived(p_.arrivals + blockIdx.x);
    }
  }

  // Four sums are those of two rows, for two tokens.
  __device__ void store(int first_row, Sums& sums) const {
    first_row += lane_ % 4 * 2;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const int token = first_token_ + 8 * t;
      if (token < p_.tokens) {
        T* const y = static_cast<T*>(p_.y) + token * p_.y_stride + first_row;
        for_each_four(sums, [&](int i, const float* sum) {
          store_pair(y + i * 8, first_row + i * 8, sum[2 * t], sum[2 * t + 1]);
        });
      }
    }
  }
  __device__ void store_pair(T* y, int row, float a, float b) const {
    const T low = value_of(a, row);
    const T high = value_of(b, row + 1);
    if (p_.y_in_pairs && row + 1 < p_.rows) {
      *reinterpret_cast<uint32_t*>(y) = static_cast<uint32_t>(bits_of(high)) << 16 | bits_of(low);
    } else {
      if (row < p_.rows) {
        y[0] = low;
      }
      if (row + 1 < p_.rows) {
        y[1] = high;
      }
    }
  }
  __device__ T value_of(float sum, int row) const {
    const T* const bias = static_cast<const T*>(p_.bias);
    const float v = sum + (bias == nullptr || row >= p_.rows ? 0.f : f32_of(bias[row]));
    return from_f32<T>(p_.relu && v < 0.f ? 0.f : v);  // NaN stays
  }
  __device__ static uint16_t bits_of(T v) { return reinterpret_cast<const uint16_t&>(v); }

  const TileParameters& p_;
  uint32_t full_;
  uint32_t empty_;
  uint32_t tiles_;
  int stages_;
  int lane_;
  int first_token_;
  uint32_t zero_;  // which the compiler does not know
  const T* x_[2];  // of the two tokens
};

// Extracts one tile of every step of a stage, by kParts warps.
template <int kParts, bool kKeeps>
__device__ void extract_tiles(const TileParameters& p, WgmmaBarriers& barriers, uint32_t tiles,
                              uint32_t slots, int mine, int part, int stages, TileRange range) {
  const int lane = computed_once(threadIdx.x % kWarp);
  const int stage = mine / kStepTiles;
  StepTiles own(p, range, stage, stages, mine % kStepTiles);
  PieceQueue pieces(p, own, slots, shared_address(barriers.pieces + mine * p.slots), part == 0);
  TileExtractor<kParts, kKeeps> extractor(tiles + mine * kTileBytes, lane, part);
  const uint32_t full = shared_address(barriers.full + stage);
  const uint32_t empty = shared_address(barriers.empty + stage);
  const auto meet = [&] {
    if constexpr (kParts == 1) {
      __syncwarp();
    } else {
      asm volatile("bar.sync %0, %1;" ::"r"(mine + 2), "n"(kParts * kWarp) : "memory");
    }
  };
  extractor.clear_tile();
  meet();
  uint32_t parity = 0;
  while (!own.done()) {
    const bool kept = extract_record(
        extractor, pieces,
        [&] {
          shared_stores_done();
          meet();
        },
        [&] {
          if (part == 0 && lane == 0) {
            barrier_arrive(full);
          }
        });
    own.advance();
    if (own.done()) {
      break;
    }
    barrier_wait(empty, parity);
    parity ^= 1;
    if constexpr (kKeeps) {
      if (kept) {
        extractor.clear_places();
      } else {
        extractor.clear_tile();
      }
    } else {
      extractor.clear_tile();
    }
    meet();
  }
}

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
    return;
  }
  decrease_registers<kExtractorRegisters>();
  const int mine = (warp - kGroupWarps) / kParts;
  const int part = (warp - kGroupWarps) % kParts;
  extract_tiles<kParts, kGroups == 1>(
      p, barriers, tiles, tiles + in_flight * kTileBytes + mine * p.slots * p.slot_bytes, mine,
      part, stages, range);
#endif
}

}  // namespace sparsellm::tiled_csl
