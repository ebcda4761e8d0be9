#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "sparse/tca_bme/cuda/record_tile.cuh"
#include "sparse/tca_bme/quantized/quantized_layout.h"

namespace sparsellm::tca_bme {

// Where a lane's scales are in a record of i4. OFFSETS: of a chunk, 0 of a dense record.
template <int OFFSETS>
class NibbleScales {
 public:
  __device__ NibbleScales(int lane, int group)
      : at_(QuantizedLayout{.values = QuantizedLayout::Values::i4, .offsets = OFFSETS}
                .mask_bytes() +
            QuantizedLayout{.values = QuantizedLayout::Values::i4, .offsets = OFFSETS}
                .offset_bytes() +
            (lane >> 2) * 16),
        log_(group == 32   ? 0
             : group == 64 ? 1
                           : 2) {}

  // Whether 32 columns of a record are the first, or the last, of a group.
  __device__ bool begins_group(int columns32) const { return (columns32 & ((1 << log_) - 1)) == 0; }
  __device__ bool ends_group(int columns32) const { return begins_group(columns32 + 1); }
  // Of the group of these 32 columns: those of rows g and 8 + g of each tile.
  __device__ void load(__half2 (&scales)[4], uint32_t base, int columns32) const {
    const uint4 all = load_shared4(base + at_ + (columns32 >> log_) * (kRecordRows * 2));
    const uint32_t of_tiles[4] = {all.x, all.y, all.z, all.w};
    memcpy(scales, of_tiles, sizeof scales);
  }

 private:
  uint32_t at_;
  int log_;  // of the group in units of 32 columns
};

}  // namespace sparsellm::tca_bme
