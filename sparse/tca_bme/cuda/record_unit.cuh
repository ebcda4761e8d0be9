#pragma once

#include <cstdint>

#include "sparse/tca_bme/cuda/record_tile.cuh"

namespace sparsellm::tca_bme {

// A unit is what 4 chunks side by side become when they are expanded in shared memory, 64 rows x 64
// columns: rows of 128 bytes, in which the 16 bytes u of row r lie at u ^ r % 8. That is the
// swizzle of 128 bytes that tensor maps and wgmma know, and neither the stores of fragments nor the
// loads of rows have bank conflicts. Units are aligned to 1024 bytes.
constexpr int kUnitChunks = 4;
constexpr int kUnitColumns = 64;
constexpr int kUnitRowBytes = 128;
constexpr int kUnitBytes = 64 * kUnitRowBytes;
constexpr int kUnitAlignment = 1024;

// Where in a unit a lane's first elements lie; those 16 * u bytes further in the row are at the
// address exclusive-or 16 * u.
__device__ inline uint32_t unit_lane_offset(int lane) {
  const int g = lane >> 2;
  return g * (kUnitRowBytes + 16) + (lane & 3) * 4;
}

__device__ inline void store_shared(uint32_t to, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}

// Expands a unit, the chunks of the record at `base` from `first`, 0 or 4, on; `to` is
// unit_lane_offset() after the unit's address.
template <int CH, bool PAIR, template <bool> class COUNTER>
__device__ inline void expand_unit(uint32_t to, uint32_t base, int first,
                                   const RecordDecoder<CH, PAIR, COUNTER>& decoder) {
  constexpr int kChunkMaskBytes = PAIR ? 64 : 128;
  // Of pairs, a half of what is loaded: what comes after the masks is not used.
  uint32_t own[4], turned[4];
  const uint32_t masks = base + decoder.lane16 + first * kChunkMaskBytes;
  load_transposed(turned, masks);
  load_matrices(own, masks);
  const uint32_t offsets = base + decoder.offsets_at + first * 64;
#pragma unroll
  for (int c = 0; c < kUnitChunks; ++c) {
    const int word = PAIR ? c / 2 : c;
    const int shift = PAIR ? 8 * (c % 2) : 0;
    // Register r has the 8 columns r / 2 of the chunk, and of tile I the rows from 8 * (r % 2) on.
    const auto store = [&]<int I>(const uint32_t(&a)[4]) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        store_shared((to ^ (2 * c + r / 2) * 16) + (2 * I + r % 2) * 8 * kUnitRowBytes, a[r]);
      }
    };
    decode_chunk<PAIR>(base, offsets + c * 64, own[word] >> shift, turned[word] >> shift,
                       decoder.counter, store);
  }
}

}  // namespace sparsellm::tca_bme
