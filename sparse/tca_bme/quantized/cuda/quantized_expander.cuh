#pragma once

#include <cstdint>

#include "kernels/device/cuda_types.cuh"
#include "sparse/dense_rows.cuh"
#include "sparse/tca_bme/quantized/cuda/quantized_tile.cuh"
#include "sparse/tca_bme/quantized/cuda/widened_product.cuh"

namespace sparsellm::tca_bme {

// Writes what the values of a record of 8 bits are with their scales, rounded to T.
template <class T, QuantizedLayout::Values VALUES, int OFFSETS>
class QuantizedExpander {
 public:
  static constexpr int kColumns = QuantizedLayout::kColumns;
  static constexpr int kSharedBytes = 0;

  __device__ QuantizedExpander(uint8_t*, int lane) : decoder_(lane), lane_(lane) {}

  // `base`: the record; `row` and `column`: those of its first element.
  __device__ void expand(const DenseRows& rows, const float* scales, int64_t matrix_rows,
                         uint32_t base, int64_t row, int64_t column) const {
    const int g = lane_ >> 2;
    const int t = lane_ & 3;
    float of_rows[4][2];  // of tile m, row 8 q + g
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        const int64_t r = row + 16 * m + 8 * q + g;
        of_rows[m][q] = r < matrix_rows ? __ldg(scales + r) * kWidenedFactor<VALUES> : 0.f;
      }
    }
    decode_bytes(base, decoder_, [&](int c, int j, const uint32_t(&bytes)[4]) {
      const int tile = 2 * (c & 1) + j;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint2 of_row[2];
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          uint32_t pairs[2];
          widen<T, VALUES>(bytes[2 * h + q], pairs);
          of_row[q] =
              make_uint2(scaled(pairs[0], of_rows[tile][q]), scaled(pairs[1], of_rows[tile][q]));
        }
        // Of two lanes that have eight columns of both rows, each gets those of one.
        const uint2 sent = of_row[1 - t % 2];
        const uint2 got =
            make_uint2(__shfl_xor_sync(~0u, sent.x, 1), __shfl_xor_sync(~0u, sent.y, 1));
        const uint4 eight = t % 2 == 0 ? make_uint4(of_row[0].x, of_row[0].y, got.x, got.y)
                                       : make_uint4(got.x, got.y, of_row[1].x, of_row[1].y);
        store_eight(rows, row + 16 * tile + 8 * (t % 2) + g,
                    column + c / 2 * QuantizedLayout::kChunkSide + 16 * h + t / 2 * 8, eight);
      }
    });
  }

 private:
  __device__ static uint32_t scaled(uint32_t pair, float scale) {
    T two[2];
    memcpy(two, &pair, sizeof two);
    const T result[2] = {from_f32<T>(f32_of(two[0]) * scale), from_f32<T>(f32_of(two[1]) * scale)};
    memcpy(&pair, result, sizeof pair);
    return pair;
  }

  QuantizedDecoder<OFFSETS> decoder_;
  int lane_;
};

}  // namespace sparsellm::tca_bme
