#pragma once

#include <cstdint>

#include "kernels/base/pdl.cuh"
#include "kernels/base/warp.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/pipeline/arrivals.cuh"
#include "kernels/pipeline/fragment_store.cuh"
#include "sparse/tiled_csl/cuda/tile_pipeline.cuh"

// Products of few tokens with a weight in the layout of tile_record.h: load as sparse, compute as
// dense (Flash-LLM, Xia et al., VLDB 2024, section 4), with a pipeline of its own for each warp.
//
// A warp has a dense tile in shared memory, and slots for pieces of records that bulk copies fill
// ahead of it. For tile after tile it stores the nonzeros of the record, multiplies the tile by x
// on the tensor cores, and stores zeros where it had stored nonzeros. The warps of a multiprocessor
// are in different phases, so memory, shared memory and tensor cores work at the same time; between
// them there are no barriers.
//
// Of the tiles, one row of tiles after the other, the warps of all thread blocks have equal shares
// (Stream-K, Osama et al. 2023), a block those of neighbours. A warp begins with the last row of
// its share. What it has of a row that others have a part in is added up in the end: within the
// block through shared memory, and then between blocks, by the one that has the row's end, through
// global memory. The order of all sums depends on the shape and the number of warps alone.
namespace sparsellm::tiled_csl {

// x of a tile's columns for N tokens, as B of mma.m16n8k16 in four steps over K. Lane 4 g + t has
// 16 columns from 16 t on of tokens g, g + 8, ...: tile_record.h puts the columns of a tile in the
// order that makes these its part of B.
template <class T, int N>
class TileTokens {
 public:
  __device__ TileTokens(const TileParameters& p, int lane)
      : p_(p),
        first_token_(lane / 4),
        first_column_(lane % 4 * 16),
        x_(static_cast<const T*>(p.x) + lane / 4 * p.x_stride + lane % 4 * 16) {
#pragma unroll
    for (int t = 0; t < N / 8; ++t) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        registers_[t][i] = 0;
      }
    }
  }

  __device__ void load(int tile_column) {
    const int column = tile_column * kTileColumns;
    const bool whole = p_.x_aligned && column + first_column_ + 16 <= p_.columns;
#pragma unroll
    for (int t = 0; t < N / 8; ++t) {
      if (t * 8 + first_token_ < p_.tokens) {
        const T* const from = x_ + t * 8 * p_.x_stride + column;
        if (whole) {
          load_columns(registers_[t], from);
        } else {
          load_some_columns(registers_[t], reinterpret_cast<const uint16_t*>(from),
                            p_.columns - column - first_column_);
        }
      }
    }
  }
  __device__ uint32_t operator()(int tokens, int step, int half) const {
    return registers_[tokens][2 * step + half];
  }

 private:
  const TileParameters& p_;
  int first_token_;
  int first_column_;
  const T* x_;
  uint32_t registers_[N / 8][8];
};

__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a)
               : "memory");
}

// The sums of a row of tiles for N tokens: fragments of 16 rows x 8 tokens, as mma.m16n8k16 has
// them.
template <class T, int N>
class TileSums {
 public:
  static constexpr int kFragments = kTileRows / 16 * (N / 8);
  static constexpr int kUnits = kFragments * kWarp;  // of float4

  __device__ void clear() {
#pragma unroll
    for (auto& rows : sums_) {
#pragma unroll
      for (auto& fragment : rows) {
#pragma unroll
        for (float& sum : fragment) {
          sum = 0.f;
        }
      }
    }
  }

  // chunks[k]: what ldmatrix takes from the lane in step k over the first 16 rows of the tile.
  __device__ void multiply(const uint32_t (&chunks)[4], const TileTokens<T, N>& x) {
    uint32_t a[2][kRowTiles][4];
    load_step(a[0], chunks[0]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (k < 3) {
        load_step(a[(k + 1) % 2], chunks[k + 1]);
      }
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int t = 0; t < N / 8; ++t) {
          mma<T>(sums_[m][t], a[k % 2][m], x(t, k, 0), x(t, k, 1));
        }
      }
    }
  }

  // body(fragment, its sums)
  template <class Body>
  __device__ void for_each(Body&& body) const {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int t = 0; t < N / 8; ++t) {
        const float(&s)[4] = sums_[m][t];
        body(m * (N / 8) + t, float4{s[0], s[1], s[2], s[3]});
      }
    }
  }
  __device__ static void store(const TileParameters& p, int tile_row, int fragment, int lane,
                               float4 v) {
    store_fragment<T>(p, tile_row * kTileRows + fragment / (N / 8) * 16, fragment % (N / 8) * 8,
                      lane, v);
  }

 private:
  static constexpr int kRowTiles = kTileRows / 16;

  static __device__ void load_step(uint32_t (&a)[kRowTiles][4], uint32_t chunk) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      load_matrices(a[m], chunk + m * (16 * kTileColumns * 2));
    }
  }

  float sums_[kRowTiles][N / 8][4];
};

// Rows of tiles that warps have a part of, while the others have the rest: the one that a warp
// begins with, and the one that it ends with, or -1.
struct SharedRows {
  int early[kMaxWarps];  // its sums are in partials
  int late[kMaxWarps];   // in the tile of the warp
};

// Adds up and stores the rows of tiles that warps share. By the block, whose warps have all left
// what they had.
template <class T, int N>
__device__ void add_up_shared_rows(const TileParameters& p, uint32_t tiles,
                                   const SharedRows& rows) {
  using Sums = TileSums<T, N>;
  const int warps = blockDim.x / kWarp;
  const int block = blockIdx.x;
  const auto tiles_of = [&](int of_block) {
    return TileRange{first_tile_of(p, of_block * warps), first_tile_of(p, (of_block + 1) * warps)};
  };
  const TileRange own = tiles_of(block);
  if (own.end <= own.first) {
    return;
  }
  const auto early_of = [&](int of_block, int warp) {
    return p.partials + (int64_t{of_block} * (warps + 1) + warp) * Sums::kUnits;
  };
  const int lane = threadIdx.x % kWarp;
  const int late_row = lane < warps ? rows.late[lane] : -1;
  const int early_row = lane < warps ? rows.early[lane] : -1;
  for (int row = (own.end - 1) / p.row_tiles; row >= own.first / p.row_tiles; --row) {
    const uint32_t late = __ballot_sync(~0u, late_row == row);
    const int early = __ffs(__ballot_sync(~0u, early_row == row)) - 1;
    if (late == 0 && early < 0) {
      continue;  // one warp has all of it
    }
    const int row_begin = row * p.row_tiles;
    const bool leaves = own.end < row_begin + p.row_tiles;
    // body(block) for the blocks before this one that have a part of the row, the nearest first.
    const auto for_each_before = [&](auto&& body) {
      int missing = leaves ? 0 : own.first - row_begin;
      for (int before = block - 1; missing > 0; --before) {
        const TileRange range = tiles_of(before);
        missing -= range.end - range.first;
        body(before);
      }
    };
    if (!leaves && own.first > row_begin) {
      if (threadIdx.x == 0) {
        for_each_before([&](int before) {
          wait_arrived(p.arrivals + before);
          p.arrivals[before] = 0;
        });
      }
      __syncthreads();
    }
    for (int unit = threadIdx.x; unit < Sums::kUnits; unit += blockDim.x) {
      float4 sum{0.f, 0.f, 0.f, 0.f};
      // Of all that is loaded this takes the longest.
      const float4 early_sum = early < 0 ? sum : __ldcg(early_of(block, early) + unit);
#pragma unroll
      for (int w = 0; w < kMaxWarps; ++w) {
        if (late >> w & 1) {
          const uint4 v = load_shared128(tiles + w * kTileBytes + unit * 16);
          add(sum, float4{__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                          __uint_as_float(v.w)});
        }
      }
      add(sum, early_sum);
      for_each_before([&](int before) { add(sum, __ldcg(early_of(before, warps) + unit)); });
      if (leaves) {
        __stcg(early_of(block, warps) + unit, sum);
      } else {
        Sums::store(p, row, unit / kWarp, unit % kWarp, sum);
      }
    }
    if (leaves) {
      __syncthreads();
      if (threadIdx.x == 0) {
        set_arrived(p.arrivals + block);
      }
    }
  }
}

// What multiply_share() does for each tile of a warp: everything. Of another type, which an
// ablation has (sparse/tiled_csl/ablation), stages are left out.
struct AllStages {
  static constexpr bool kExtracts = true;    // and then clears what was extracted
  static constexpr bool kMultiplies = true;  // by x
  static constexpr bool kXAhead = true;      // x of the next tile is loaded before it is needed

  __device__ AllStages(const TileParameters&, const TileCursor&) {}
  // Takes the next record. Returns whether extractor.clear_places() clears what it stored.
  template <class Extractor, class Pieces>
  __device__ bool extract(Extractor& extractor, Pieces& pieces) {
    return extract_record(
        extractor, pieces, [] { __syncwarp(); }, [] {});
  }
};

// A warp's share of the tiles: stores the rows of tiles that it has all of, and leaves the sums of
// the others for add_up_shared_rows(). tile: its own, in shared memory.
template <class T, int N, class Stages = AllStages, class Pieces>
__device__ void multiply_share(const TileParameters& p, TileCursor cursor, Pieces& pieces,
                               uint32_t tile, int warp, int lane, SharedRows& shared_rows) {
  using Sums = TileSums<T, N>;
  static_assert(Sums::kUnits * 16 <= kTileBytes, "sums are left in the tile");
  TileExtractor<1, true> extractor(tile, lane);
  extractor.clear_tile();
  uint32_t chunks[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    chunks[k] = computed_once(tile + lane % 16 * (kTileColumns * 2) +
                              (((2 * k + lane / 16) ^ lane % 8) << 4));
  }
  wait_on_dependencies();
  TileTokens<T, N> x(p, lane);
  Stages stages(p, cursor);
  constexpr bool kXAhead = Stages::kMultiplies && Stages::kXAhead;
  if (kXAhead && !cursor.done()) {
    x.load(cursor.column());
  }
  __syncwarp();
  while (!cursor.done()) {
    const int row_begin = cursor.row_begin();
    const TileRange of_row = cursor.row_range();
    Sums sums;
    sums.clear();
#pragma unroll 1
    do {
      const bool kept = stages.extract(extractor, pieces);
      if constexpr (Stages::kMultiplies && !kXAhead) {
        x.load(cursor.column());
      }
      cursor.advance();
      if constexpr (Stages::kMultiplies) {
        sums.multiply(chunks, x);
      }
      if (kXAhead && !cursor.done()) {
        x.load(cursor.column());
      }
      __syncwarp();
      if constexpr (Stages::kExtracts) {
        if (kept) {
          extractor.clear_places();
        } else {
          extractor.clear_tile();
        }
        __syncwarp();
      }
    } while (cursor.row_begin() == row_begin && !cursor.done());

    const int row = row_begin / p.row_tiles;
    if (of_row.first == row_begin && of_row.end == row_begin + p.row_tiles) {
      sums.for_each([&](int fragment, float4 v) { Sums::store(p, row, fragment, lane, v); });
    } else if (cursor.done()) {
      sums.for_each([&](int fragment, float4 v) {
        asm volatile(
            "st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(tile + (fragment * kWarp + lane) * 16),
            "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
            : "memory");
      });
      shared_rows.late[warp] = row;
    } else {
      const int warps = blockDim.x / kWarp;
      float4* const to =
          p.partials + (int64_t{blockIdx.x} * (warps + 1) + warp) * Sums::kUnits + lane;
      sums.for_each([&](int fragment, float4 v) { __stcg(to + fragment * kWarp, v); });
      shared_rows.early[warp] = row;
    }
  }
}

// One block on a multiprocessor. Shared memory, from a multiple of 1,024 bytes on: a tile of each
// warp, then the slots of each.
template <class T, int N, int kThreads, class Stages = AllStages>
__global__ void __launch_bounds__(kThreads)
    tile_matmul_kernel(const __grid_constant__ TileParameters p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ uint8_t memory[];
  __shared__ uint64_t barriers[kMaxWarps * kMaxSlots];
  __shared__ SharedRows shared_rows;
  static_assert(sizeof(barriers) + sizeof(shared_rows) == kStaticBytes);
  const int warps = blockDim.x / kWarp;
  const int warp = uniform_warp();
  const int lane = computed_once(threadIdx.x % kWarp);
  const uint32_t tiles = (shared_address(memory) + 1023) / 1024 * 1024;
  const uint32_t tile = tiles + warp * kTileBytes;
  const uint32_t first_barrier = shared_address(barriers + warp * p.slots);
  if (lane < p.slots) {
    barrier_init(first_barrier + lane * 8, 1);
  }
  shared_rows.early[warp] = -1;
  shared_rows.late[warp] = -1;
  barriers_ready();
  __syncwarp();

  const int index = blockIdx.x * warps + warp;
  const TileRange range{first_tile_of(p, index), first_tile_of(p, index + 1)};
  // The records do not depend on the launch before.
  const TileCursor all_tiles(range, p.row_tiles, 0, 1);
  PieceQueue pieces(p, all_tiles, tiles + warps * kTileBytes + warp * p.slots * p.slot_bytes,
                    first_barrier);
  launch_dependents();
  multiply_share<T, N, Stages>(p, all_tiles, pieces, tile, warp, lane, shared_rows);
  __syncthreads();
  add_up_shared_rows<T, N>(p, tiles, shared_rows);
#endif
}

}  // namespace sparsellm::tiled_csl
