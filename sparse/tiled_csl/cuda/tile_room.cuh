#pragma once

#include <algorithm>
#include <cstdint>

#include "sparse/tiled_csl/cuda/tile_pipeline.cuh"

// What fits into the shared memory of a thread block of compute capability 9.0.
namespace sparsellm::tiled_csl {

constexpr int kSharedBytes = 227 * 1024;
constexpr int kDynamicBytes = kSharedBytes - kStaticBytes;
// Of the first tile, which comes after the static variables.
constexpr int kTileAlignment = 1024;
static_assert(kStaticBytes <= kTileAlignment);

inline int slot_bytes_for(int64_t largest_record) {
  constexpr int64_t kStep = 128;  // bulk copies are the fastest to multiples of it
  return static_cast<int>(
      std::clamp<int64_t>(ceil_div(largest_record, kStep) * kStep, kStep, kPieceBytes));
}
// Of a tile, where it takes `bytes` without them; 0 if that many tiles have no room.
inline int slots_for(int64_t largest_record, int tiles, int64_t bytes) {
  const int64_t room = (kSharedBytes - kTileAlignment) / tiles - bytes;
  return static_cast<int>(std::clamp<int64_t>(room / slot_bytes_for(largest_record), 0, kMaxSlots));
}

// Whether 32 bits are enough to count the steps of a launch, of which each tile has this many.
inline bool countable(int64_t rows, int64_t columns, int64_t steps_of_tile = 1) {
  constexpr int64_t kMost = INT32_MAX / 2;
  return rows <= kMost && columns <= kMost &&
         tile_grid(rows, columns).count() <= kMost / steps_of_tile;
}

}  // namespace sparsellm::tiled_csl
