#pragma once

#include <cstdint>

#include "kernels/device/async_copy.cuh"
#include "sparse/tiled_csl/cuda/tile_pipeline.cuh"

// How warps that extract tiles hand them to warpgroups that multiply them: through stages of shared
// memory with two barriers each.
namespace sparsellm::tiled_csl {

// Where the warps of a tile work. Addresses in shared memory.
struct ExtractorPlace {
  uint32_t tile;
  uint32_t slots;
  uint32_t pieces;  // barriers of the slots
  uint32_t full;    // the tile has its nonzeros
  uint32_t empty;   // nothing reads it any more
  int part = 0;     // of the warps of a tile
  int meeting = 0;  // the number of the barrier at which they meet, if there are two
};

// Extracts a tile of every step of a stage, by kParts warps. begin(): the stage is free for the
// next one. Returns the parity of `empty` that follows the last one.
template <int kParts, bool kKeeps, class Tiles, class Begin>
__device__ uint32_t extract_tiles(const TileParameters& p, Tiles own, const ExtractorPlace& at,
                                  Begin&& begin) {
  const int lane = computed_once(threadIdx.x % kWarp);
  PieceQueue pieces(p, own, at.slots, at.pieces, at.part == 0);
  TileExtractor<kParts, kKeeps> extractor(at.tile, lane, at.part);
  const auto meet = [&] {
    if constexpr (kParts == 1) {
      __syncwarp();
    } else {
      asm volatile("bar.sync %0, %1;" ::"r"(at.meeting), "n"(kParts * kWarp) : "memory");
    }
  };
  uint32_t parity = 0;
  if (own.done()) {
    return parity;
  }
  extractor.clear_tile();
  begin();
  meet();
  while (true) {
    const bool kept = extract_record(
        extractor, pieces,
        [&] {
          shared_stores_done();
          meet();
        },
        [&] {
          if (at.part == 0 && lane == 0) {
            barrier_arrive(at.full);
          }
        });
    own.advance();
    if (own.done()) {
      break;
    }
    barrier_wait(at.empty, parity);
    parity ^= 1;
    begin();
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
  return parity;
}

}  // namespace sparsellm::tiled_csl
