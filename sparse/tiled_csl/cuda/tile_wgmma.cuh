#pragma once

#include <cstdint>

#include "kernels/base/pdl.cuh"
#include "kernels/base/warp.cuh"
#include "kernels/device/async_copy.cuh"
#include "kernels/device/cuda_types.cuh"
#include "kernels/device/wgmma.cuh"
#include "kernels/pipeline/arrivals.cuh"
#include "sparse/tiled_csl/cuda/tile_pipeline.cuh"

// Products of more tokens with a weight in the layout of tile_record.h, each tile extracted once
// for 64 or 128 of them. Compiled for sm_90a alone.
//
// Extracting warps have a tile and slots for pieces each, as in tile_matmul.cuh, and take the tiles
// of the block in turn. Warpgroups of 64 tokens multiply one tile after the other by x, with the
// tile as the second operand, [128 rows, 64 columns] in shared memory, and x as the first, in
// registers. Thread blocks have equal shares of the tiles (Stream-K, Osama et al. 2023), the last
// row of them first; what blocks have of a row of tiles in common is added up by the one that has
// its end.
namespace sparsellm::tiled_csl {

constexpr int kGroupTokens = 64;  // of a warpgroup
constexpr int kGroupThreads = 128;

struct WgmmaBarriers {
  uint64_t pieces[kMaxWarps * kMaxSlots];
  uint64_t full[kMaxWarps];   // a tile has its nonzeros
  uint64_t empty[kMaxWarps];  // no warpgroup needs it any more
};

// kFast: rows of x begin at multiples of 16 bytes, and rows of tiles, and the shares of blocks, are
// pairs of whole tiles.
template <class T, int kGroups, bool kFast>
class TileGroup {
 public:
  __device__ TileGroup(const TileParameters& p, WgmmaBarriers& barriers, uint32_t tiles,
                       int extractors)
      : p_(p),
        full_(shared_address(barriers.full)),
        empty_(shared_address(barriers.empty)),
        tiles_(tiles),
        extractors_(extractors),
        lane_(threadIdx.x % kWarp),
        first_token_(threadIdx.x / kWarp * 16 + lane_ / 4),
        zero_(static_cast<uint32_t>(p.tokens) >> 31) {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      x_[t] = static_cast<const T*>(p.x) + min(first_token_ + 8 * t, p.tokens - 1) * p.x_stride +
              lane_ % 4 * 16;
    }
  }

  __device__ void run(TileRange range) {
    TileCursor cursor(range, p_.row_tiles, 0, 1);
    TileCursor ahead = cursor;  // of x
    // Of the next tiles: it comes from the L2, which takes longer than the products of a tile.
    Columns x[kTiles];
#pragma unroll
    for (Columns& of_tile : x) {
      load(of_tile, ahead);
    }
    Ring ring{extractors_};
    while (!cursor.done()) {
      const int row_begin = cursor.row_begin();
      const TileRange of_row = cursor.row_range();
      float sums[kSums];
#pragma unroll
      for (float& sum : sums) {
        sum = 0.f;
      }
#pragma unroll 1
      for (int tile = of_row.first; tile < of_row.end; tile += kTiles) {
        multiply(sums, x, ahead, ring);
      }
      finish(row_begin, of_row, sums);
      cursor.skip_row();
    }
  }

 private:
  static constexpr int kSums = kTileRows / 2;
  static constexpr int kTiles = kFast ? 2 : 1;
  static constexpr int kThreads = kGroups * kGroupThreads;

  using Columns = uint32_t[2][8];  // of two tokens, in pairs

  struct Ring {
    int stages;
    int stage = 0;
    uint32_t parity = 0;

    __device__ void advance() {
      if (++stage == stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  };

  // The products of kTiles tiles are under way together: what comes before and after takes as long
  // as those of one.
  __device__ void multiply(float (&sums)[kSums], Columns (&x)[kTiles], TileCursor& ahead,
                           Ring& ring) const {
    uint32_t tile[kTiles];
    int stage[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      barrier_wait(full_ + ring.stage * 8, ring.parity);
      stage[i] = ring.stage;
      tile[i] = swizzled_operand(tiles_ + ring.stage * kTileBytes);
      ring.advance();
    }
    // A product takes four registers in a row, two of each token. Were these copies, the compiler
    // would make them where x is loaded, and wait for it there.
    uint32_t a[kTiles][4][4];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          a[i][k][r] = x[i][r % 2][2 * k + r / 2] ^ zero_;
        }
      }
    }
#pragma unroll
    for (Columns& of_tile : x) {
      load(of_tile, ahead);
    }
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        wgmma<T>(sums, a[i][k], tile[i] + 2 * k);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
    if (lane_ == 0) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        barrier_arrive(empty_ + stage[i] * 8);
      }
    }
  }

  // 16 columns of two tokens, 8 apart (tile_record.h): for a warp, the first operand of four steps.
  // After the last tile, and for tokens after the last, anything. Loads without a condition go to
  // where the values stay until multiply() puts those of two tokens side by side: nothing waits for
  // them before.
  __device__ void load(Columns& x, TileCursor& tiles) const {
    const int tile_column = tiles.done() ? 0 : tiles.column();
    tiles.advance();
    const int column = tile_column * kTileColumns;
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
  __device__ float* partial_of(int block) const {
    return reinterpret_cast<float*>(p_.partials) + int64_t{block} * kSums * kThreads + threadIdx.x;
  }

  __device__ void finish(int row_begin, TileRange of_row, float (&sums)[kSums]) const {
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
      const float* const from = partial_of(block);
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        sums[i] += __ldcg(from + i * kThreads);
      }
    }
    store(row_begin / p_.row_tiles * kTileRows, sums);
  }
  __device__ void leave(const float (&sums)[kSums]) const {
    float* const to = partial_of(blockIdx.x);
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      __stcg(to + i * kThreads, sums[i]);
    }
    __threadfence();
    threads_meet();
    if (threadIdx.x == 0) {
      set_arrived(p_.arrivals + blockIdx.x);
    }
  }
  __device__ void store(int first_row, const float (&sums)[kSums]) const {
    const T* const bias = static_cast<const T*>(p_.bias);
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int row = first_row + i / 4 * 8 + lane_ % 4 * 2 + i % 2;
      const int token = first_token_ + i / 2 % 2 * 8;
      if (row < p_.rows && token < p_.tokens) {
        const float sum = sums[i] + (bias == nullptr ? 0.f : f32_of(bias[row]));
        static_cast<T*>(p_.y)[token * p_.y_stride + row] =
            from_f32<T>(p_.relu && sum < 0.f ? 0.f : sum);  // NaN stays
      }
    }
  }

  const TileParameters& p_;
  uint32_t full_;
  uint32_t empty_;
  uint32_t tiles_;
  int extractors_;
  int lane_;
  int first_token_;
  uint32_t zero_;  // which the compiler does not know
  const T* x_[2];  // of the two tokens
};

// One block on a multiprocessor. Shared memory, from a multiple of 1,024 bytes on: a tile of each
// extracting warp, then the slots of each.
template <class T, int kGroups, bool kFast, int kThreads>
__global__ void __launch_bounds__(kThreads)
    tile_wgmma_kernel(const __grid_constant__ TileParameters p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ uint8_t memory[];
  __shared__ WgmmaBarriers barriers;
  constexpr int kGroupWarps = kGroups * kGroupThreads / kWarp;
  const int extractors = blockDim.x / kWarp - kGroupWarps;
  const int warp = uniform_warp();
  const uint32_t tiles = (shared_address(memory) + 1023) / 1024 * 1024;
  if (threadIdx.x < static_cast<unsigned>(extractors)) {
    barrier_init(shared_address(barriers.full + threadIdx.x), 1);
    barrier_init(shared_address(barriers.empty + threadIdx.x), kGroupWarps);
    for (int slot = 0; slot < p.slots; ++slot) {
      barrier_init(shared_address(barriers.pieces + threadIdx.x * p.slots + slot), 1);
    }
  }
  barriers_ready();
  __syncthreads();
  launch_dependents();
  const TileRange range{first_tile_of(p, blockIdx.x), first_tile_of(p, blockIdx.x + 1)};
  // Sums and x take more registers than places of nonzeros do.
  if (warp < kGroupWarps) {
    if constexpr (kGroups > 1) {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 168;");
    }
    wait_on_dependencies();
    TileGroup<T, kGroups, kFast>(p, barriers, tiles, extractors).run(range);
    return;
  }
  if constexpr (kGroups > 1) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 88;");
  }
  const int lane = computed_once(threadIdx.x % kWarp);
  const int mine = warp - kGroupWarps;
  TileCursor cursor(range, p.row_tiles, mine, extractors);
  PieceQueue pieces(p, cursor, tiles + extractors * kTileBytes + mine * p.slots * p.slot_bytes,
                    shared_address(barriers.pieces + mine * p.slots));
  TileExtractor extractor(tiles + mine * kTileBytes, lane);
  const uint32_t full = shared_address(barriers.full + mine);
  const uint32_t empty = shared_address(barriers.empty + mine);
  extractor.clear_tile();
  __syncwarp();
  uint32_t parity = 0;
  while (!cursor.done()) {
    const bool kept = extract_record(extractor, pieces);
    shared_stores_done();
    __syncwarp();
    if (lane == 0) {
      barrier_arrive(full);
    }
    cursor.advance();
    if (cursor.done()) {
      break;
    }
    barrier_wait(empty, parity);
    parity ^= 1;
    if (kept) {
      extractor.clear_places();
    } else {
      extractor.clear_tile();
    }
    __syncwarp();
  }
#endif
}

}  // namespace sparsellm::tiled_csl
