#pragma once

#include <cstdint>

#include "kernels/base/pdl.cuh"
#include "kernels/base/warp.cuh"
#include "kernels/device/async_copy.cuh"
#include "kernels/device/copy_groups.cuh"
#include "sparse/tiled_csl/cuda/tile_matmul.cuh"
#include "sparse/tiled_csl/cuda/tile_pipeline.cuh"

// The product of tile_matmul.cuh for compute capability 8.0 and above: the same shares, tiles, sums
// and order of additions, with copies that its own lanes start (cp.async) in place of bulk copies
// and barriers in shared memory.
namespace sparsellm::tiled_csl {

constexpr int kMaxStageWarps = 8;  // of a thread block, by the registers of a multiprocessor

// As PieceQueue. Each slot has a group of copies in its turn, an empty one after the last piece, so
// that the number of groups says which pieces are there.
class StagedPieces {
 public:
  __device__ StagedPieces(const TileParameters& p, const TileCursor& tiles, uint32_t slots,
                          int lane)
      : p_(p), lane_(lane), slots_(slots), piece_(slots), finder_(p, tiles) {
    for (int i = 0; i < p.slots; ++i) {
      request(slots + i * p.slot_bytes);
    }
  }

  // The shared address of the next piece, which is there.
  __device__ uint32_t wait() const {
    wait_for_oldest_copies(p_.slots);
    __syncwarp();  // so are the copies of the other lanes
    return piece_;
  }
  // Nothing reads the piece any more.
  __device__ void release() {
    request(piece_);
    piece_ += p_.slot_bytes;
    if (++slot_ == p_.slots) {
      slot_ = 0;
      piece_ = slots_;
    }
  }

 private:
  __device__ void request(uint32_t slot) {
    finder_.next([&](uint32_t start, uint32_t units) {
      const uint8_t* const from = p_.records + uint64_t{start} * kRecordAlignment;
#pragma unroll 4
      for (uint32_t unit = lane_; unit < units; unit += kWarp) {
        copy16(slot + unit * kRecordAlignment, from + unit * kRecordAlignment);
      }
    });
    commit_copies();
  }

  const TileParameters& p_;
  uint32_t lane_;
  uint32_t slots_;
  uint32_t piece_;  // that comes next
  int slot_ = 0;
  PieceFinder<TileCursor> finder_;
};

// As many warps as have room. Shared memory: a tile of each warp, then the slots of each.
template <class T, int N>
__global__ void __launch_bounds__(kMaxStageWarps* kWarp)
    tile_multistage_kernel(const __grid_constant__ TileParameters p) {
  static_assert(kMaxStageWarps <= kMaxWarps && kMaxSlots <= kMaxCopyGroups);
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ SharedRows shared_rows;
  const int warps = blockDim.x / kWarp;
  const int warp = uniform_warp();
  const int lane = computed_once(threadIdx.x % kWarp);
  const uint32_t tiles = shared_address(shared);
  shared_rows.early[warp] = -1;
  shared_rows.late[warp] = -1;
  __syncwarp();

  const int index = blockIdx.x * warps + warp;
  const TileRange range{first_tile_of(p, index), first_tile_of(p, index + 1)};
  const TileCursor cursor(range, p.row_tiles, 0, 1);
  // The records do not depend on the launch before.
  StagedPieces pieces(p, cursor, tiles + warps * kTileBytes + warp * p.slots * p.slot_bytes, lane);
  launch_dependents();
  multiply_share<T, N>(p, cursor, pieces, tiles + warp * kTileBytes, warp, lane, shared_rows);
  __syncthreads();
  add_up_shared_rows<T, N>(p, tiles, shared_rows);
}

}  // namespace sparsellm::tiled_csl
