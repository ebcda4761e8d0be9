#pragma once

#include <cstdint>

#include "kernels/pipeline/fragment_store.cuh"
#include "sparse/tca_bme/cuda/record_tile.cuh"
#include "sparse/tca_bme/format/record_layout.h"

namespace sparsellm::tca_bme {

// What record_matmul_kernel needs to know of how a warp multiplies a record with x, and where it
// keeps the sums of 64 rows (PRODUCT). This one is for version 2: values of 16 bits.
// DECODER: what multiply_record() takes.
template <class T, int NT, int CH, bool PAIR, class DECODER = RecordDecoder<CH, PAIR>>
class RecordProduct {
 public:
  using Element = T;  // of x and y
  static constexpr int kRecordColumns = CH * kChunkColumns;
  static constexpr int kTokens = 8 * NT;     // rows of x in shared memory
  static constexpr int kXPadding = 16;       // bytes after each, for other banks
  static constexpr bool kPreparesX = false;  // x is multiplied as it is
  static constexpr int kFragments = 4 * NT;  // of four sums a lane
  static constexpr int kMaxThreads = NT <= 2 ? 512 : NT == 4 ? 384 : 256;

  // x: rows of tokens in shared memory, `pitch` bytes apart.
  __device__ RecordProduct(int lane, uint32_t x, uint32_t pitch, int /*group*/)
      : decoder_(lane), x_(x + x_lane_offset<NT>(lane, pitch)), pitch_(pitch) {}

  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          sums_[m][n][c] = 0.f;
        }
      }
    }
  }
  // Adds the record at `base` times record column k of x.
  __device__ void multiply(uint32_t base, int k) {
    multiply_record<T>(sums_, base, x_ + k * (kRecordColumns * 2), pitch_, decoder_);
  }
  // After the last record of the rows.
  __device__ void finish() {}
  __device__ float4 fragment(int f) const {
    const float(&v)[4] = sums_[f / NT][f % NT];
    return make_float4(v[0], v[1], v[2], v[3]);
  }
  // Fragment f of a lane, added up over all of K; `first_row` is that of the 64 rows.
  template <class Parameters>
  __device__ static void store(const Parameters& p, int first_row, int f, int lane, float4 sums) {
    store_fragment<T>(p, first_row + f / NT * 16, f % NT * 8, lane, sums);
  }

 private:
  DECODER decoder_;
  uint32_t x_;
  uint32_t pitch_;
  float sums_[4][NT][4];
};

}  // namespace sparsellm::tca_bme
