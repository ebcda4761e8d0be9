#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "sparse/tca_bme/cuda/record_tile.cuh"
#include "sparse/tca_bme/quantized/cuda/quantized_tile.cuh"

namespace sparsellm::tca_bme {

__device__ inline __half2 half2_of(uint32_t bits) {
  __half2 two;
  memcpy(&two, &bits, sizeof two);
  return two;
}
__device__ inline uint32_t bits_of(__half2 two) {
  uint32_t bits;
  memcpy(&bits, &two, sizeof bits);
  return bits;
}

// Where a lane's scales are in a record of i4: for each tile of 16 rows those of rows g and 8 + g,
// in the halves of a word. OFFSETS: of a chunk, 0 of a dense record.
template <int OFFSETS>
class NibbleScales {
 public:
  // Of all tiles, or of one.
  __device__ NibbleScales(int lane, int group, int tile = 0)
      : at_(kLayout.mask_bytes() + kLayout.offset_bytes() + (lane >> 2) * 16 + tile * 4),
        log_(group == 32   ? 0
             : group == 64 ? 1
                           : 2) {}

  // Whether 32 columns of a record are the first, or the last, of a group.
  __device__ bool begins_group(int columns32) const { return (columns32 & ((1 << log_) - 1)) == 0; }
  __device__ bool ends_group(int columns32) const { return begins_group(columns32 + 1); }
  // Of the group of these 32 columns: those of each tile.
  __device__ void load(__half2 (&scales)[4], uint32_t base, int columns32) const {
    const uint4 all = load_shared4(at(base, columns32));
    scales[0] = half2_of(all.x);
    scales[1] = half2_of(all.y);
    scales[2] = half2_of(all.z);
    scales[3] = half2_of(all.w);
  }
  // Of columns 64 UNIT to 64 UNIT + 63: those of the tile, of each 32 columns; `scales` has those
  // of the 64 before.
  template <int UNIT>
  __device__ void load_of_unit(__half2 (&scales)[2], uint32_t base) const {
    if (UNIT == 0 || log_ < 2) {
      scales[0] = half2_of(load_word<0>(at(base, 2 * UNIT)));
    }
    scales[1] = log_ == 0 ? half2_of(load_word<0>(at(base, 2 * UNIT + 1))) : scales[0];
  }

 private:
  __device__ uint32_t at(uint32_t base, int columns32) const {
    return base + at_ + (columns32 >> log_) * (kRecordRows * 2);
  }

  static constexpr QuantizedLayout kLayout{.values = QuantizedLayout::Values::i4,
                                           .offsets = OFFSETS};

  uint32_t at_;
  int log_;  // of the group in units of 32 columns
};

}  // namespace sparsellm::tca_bme
