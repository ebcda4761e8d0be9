#pragma once

#include <cstdint>

#include "kernels/device/cuda_types.cuh"
#include "sparse/dense_rows.cuh"
#include "sparse/tca_bme/quantized/cuda/wideners.cuh"

namespace sparsellm::tca_bme {

// Writes what the values of a record are with their scales, rounded once (EXPANDER of
// record_expand_kernel).
template <class WIDENER>
class QuantizedExpander {
 public:
  static constexpr int kColumns = QuantizedLayout::kColumns;
  static constexpr int kSharedBytes = 0;

  __device__ QuantizedExpander(uint8_t*, int lane, int group)
      : widener_(lane, group), lane_(lane) {}

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
        of_rows[m][q] =
            WIDENER::kLacksScales && r < matrix_rows ? __ldg(scales + r) * WIDENER::kFactor : 1.f;
      }
    }
    widener_.decode(base, [&](int c, int j, const uint32_t(&pairs)[4][2]) {
      const int tile = 2 * (c & 1) + j;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint2 of_row[2];
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          of_row[q] = make_uint2(scaled(pairs[2 * h + q][0], of_rows[tile][q]),
                                 scaled(pairs[2 * h + q][1], of_rows[tile][q]));
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
  using T = typename WIDENER::Element;

  // value * scale, of which a bit that f32 does not hold decides how T rounds: cut off, and odd
  // where something was.
  __device__ static float product(float value, float scale) {
    const float cut = __fmul_rz(value, scale);
    const float rest = __fmaf_rn(value, scale, -cut);
    return __uint_as_float(__float_as_uint(cut) | (rest != 0.f ? 1u : 0u));
  }
  __device__ static uint32_t scaled(uint32_t pair, float scale) {
    if constexpr (WIDENER::kLacksScales) {
      T two[2];
      memcpy(two, &pair, sizeof two);
      const T result[2] = {from_f32<T>(product(f32_of(two[0]), scale)),
                           from_f32<T>(product(f32_of(two[1]), scale))};
      memcpy(&pair, result, sizeof pair);
    }
    return pair;
  }

  WIDENER widener_;
  int lane_;
};

}  // namespace sparsellm::tca_bme
