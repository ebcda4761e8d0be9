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
    // All of it is in the matrix and was requested: as most records.
    const bool whole = rows.aligned && row >= rows.begin_row && row + kRecordRows <= rows.end_row &&
                       column + kColumns <= rows.columns;
    const int own_row = 8 * (t % 2) + g;
    const int own_column = t / 2 * kLaneElements;
    // Half a record at a time: all of it is more code than a multiprocessor keeps.
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const int64_t first_column = column + kColumns / 2 * half + own_column;
      uint16_t* const to =
          rows.dense + (row - rows.begin_row + own_row) * rows.columns + first_column;
      widener_.decode_half(base, half, [&](int i, int j, const uint32_t(&pairs)[4][2]) {
        const int tile = 2 * (i & 1) + j;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          uint2 of_row[2];
#pragma unroll
          for (int q = 0; q < 2; ++q) {
            of_row[q] = make_uint2(scaled(pairs[2 * h + q][0], of_rows[tile][q]),
                                   scaled(pairs[2 * h + q][1], of_rows[tile][q]));
          }
          // Not to be computed in branches, of those that send them and of those that keep them.
          asm volatile(""
                       : "+r"(of_row[0].x), "+r"(of_row[0].y), "+r"(of_row[1].x),
                         "+r"(of_row[1].y));
          // Of two lanes that have eight columns of both rows, each gets those of one.
          const uint2 sent = of_row[1 - t % 2];
          const uint2 got =
              make_uint2(__shfl_xor_sync(~0u, sent.x, 1), __shfl_xor_sync(~0u, sent.y, 1));
          const uint4 eight = t % 2 == 0 ? make_uint4(of_row[0].x, of_row[0].y, got.x, got.y)
                                         : make_uint4(got.x, got.y, of_row[1].x, of_row[1].y);
          const int column_in_half = i / 2 * QuantizedLayout::kChunkSide + 16 * h;
          if (whole) {
            *reinterpret_cast<uint4*>(to + 16 * tile * rows.columns + column_in_half) = eight;
          } else {
            store_some(rows, row + 16 * tile + own_row, first_column + column_in_half, eight);
          }
        }
      });
    }
  }

 private:
  using T = typename WIDENER::Element;

  // Not inlined: the ends of a matrix are few, and this would be most of the code.
  __device__ __noinline__ static void store_some(const DenseRows& rows, int64_t row, int64_t column,
                                                 uint4 eight) {
    store_eight(rows, row, column, eight);
  }

  // value * scale, of which a bit that f32 does not hold decides how T rounds: cut off, and odd
  // where something was.
  __device__ static float product(float value, float scale) {
    const float cut = __fmul_rz(value, scale);
    const float rest = __fmaf_rn(value, scale, -cut);
    uint32_t bits = __float_as_uint(cut);
    asm("{\n.reg .pred p;\nsetp.neu.f32 p, %1, 0f00000000;\n@p or.b32 %0, %0, 1;\n}"
        : "+r"(bits)
        : "f"(rest));
    return __uint_as_float(bits);
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
