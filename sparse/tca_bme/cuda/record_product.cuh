#pragma once

#include <cstdint>

#include "kernels/pipeline/fragment_store.cuh"
#include "sparse/tca_bme/cuda/record_tile.cuh"
#include "sparse/tca_bme/cuda/tile_sums.cuh"
#include "sparse/tca_bme/format/record_layout.h"

namespace sparsellm::tca_bme {

// What kernels need to know of how a warp multiplies a record with x, and where it keeps the sums
// of 64 rows (PRODUCT of record_matmul_kernel and of record_multistage_kernel). This one is for
// version 2: values of 16 bits. DECODER: what multiply_record() takes.
template <class T, int NT, int CH, bool PAIR, class DECODER = RecordDecoder<CH, PAIR>>
class RecordProduct : public TileSums<NT> {
 public:
  using Element = T;  // of x and y
  static constexpr int kTokenTiles = NT;
  static constexpr int kRecordColumns = CH * kChunkColumns;
  static constexpr int kXPadding = 16;  // bytes after each row of x, for other banks
  static constexpr bool kPreparesX = false;

  // x: rows of tokens in shared memory, `pitch` bytes apart.
  __device__ RecordProduct(int lane, uint32_t x, uint32_t pitch, int /*group*/)
      : decoder_(lane), x_(x + x_lane_offset<NT>(lane, pitch)), pitch_(pitch) {}

  // Adds the record at `base` times record column k of x.
  __device__ void multiply(uint32_t base, int k) {
    multiply_at(base, static_cast<uint32_t>(k) * (kRecordColumns * 2));
  }
  // The same with the columns of x from this byte offset on.
  __device__ void multiply_at(uint32_t base, uint32_t offset) {
    multiply_record<T>(this->sums_, base, x_ + offset, pitch_, decoder_);
  }
  // Fragment f of a lane, added up over all of K; `first_row` is that of the 64 rows.
  template <class Parameters>
  __device__ static void store(const Parameters& p, int first_row, int f, int lane, float4 sums,
                               NoScales) {
    store_fragment<T>(p, first_row + f / NT * 16, f % NT * 8, lane, sums);
  }

 private:
  DECODER decoder_;
  uint32_t x_;
  uint32_t pitch_;
};

}  // namespace sparsellm::tca_bme
