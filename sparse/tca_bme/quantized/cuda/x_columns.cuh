#pragma once

#include <cstdint>

#include "sparse/tca_bme/quantized/cuda/x_planes.h"

// What the kernels that prepare x for warpgroups share.
namespace sparsellm::tca_bme {

// Columns that a thread has of a row.
constexpr int kThreadColumns = 16;

inline bool has_aligned_rows(const XRows& x) {
  constexpr int64_t kAligned = 8;  // elements of 16 bytes
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % kAligned == 0;
}

// The columns from `column` on, in pairs, with zeros beyond `columns`; `aligned`: the row is, to 16
// bytes.
__device__ inline void load_columns(uint32_t (&pairs)[kThreadColumns / 2], const uint16_t* row,
                                    int64_t column, int64_t columns, bool aligned) {
  const uint16_t* const from = row + column;
  if (aligned && column + kThreadColumns <= columns) {
    const uint4 first = *reinterpret_cast<const uint4*>(from);
    const uint4 second = *reinterpret_cast<const uint4*>(from + kThreadColumns / 2);
    pairs[0] = first.x, pairs[1] = first.y, pairs[2] = first.z, pairs[3] = first.w;
    pairs[4] = second.x, pairs[5] = second.y, pairs[6] = second.z, pairs[7] = second.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < kThreadColumns / 2; ++i) {
    const uint32_t low = column + 2 * i < columns ? from[2 * i] : 0;
    const uint32_t high = column + 2 * i + 1 < columns ? from[2 * i + 1] : 0;
    pairs[i] = low | high << 16;
  }
}

}  // namespace sparsellm::tca_bme
