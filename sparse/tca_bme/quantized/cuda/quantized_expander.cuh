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
    RowScale of_rows[4][2];  // of tile m, row 8 q + g
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        const int64_t r = row + 16 * m + 8 * q + g;
        of_rows[m][q] = RowScale(
            WIDENER::kLacksScales && r < matrix_rows ? __ldg(scales + r) * WIDENER::kFactor : 1.f);
      }
    }
    // All of it is in the matrix and was requested: as most records.
    const bool whole = rows.aligned && row >= rows.begin_row && row + kRecordRows <= rows.end_row &&
                       column + kColumns <= rows.columns;
    // Half a record at a time: all of it is more code than a multiprocessor keeps.
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const int64_t first_column = column + kColumns / 2 * half + kUnitElements * t;
      uint16_t* const to = rows.dense + (row - rows.begin_row + g) * rows.columns + first_column;
      widener_.decode_half(base, half, [&](int i, int j, const uint32_t(&pairs)[4][2]) {
        const int tile = 2 * (i & 1) + j;
        uint2 units[4];  // 2 h + q: row 8 q, columns from 16 h on
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          units[u] = make_uint2(scaled(pairs[u][0], of_rows[tile][u % 2]),
                                scaled(pairs[u][1], of_rows[tile][u % 2]));
          asm volatile("" : "+r"(units[u].x), "+r"(units[u].y));  // before the branches
        }
        const auto for_all = [&](auto store) {
#pragma unroll
          for (int u = 0; u < 4; ++u) {
            store(16 * tile + 8 * (u % 2), i / 2 * QuantizedLayout::kChunkSide + 16 * (u / 2),
                  units[u]);
          }
        };
        if (whole) [[likely]] {
          for_all([&](int r, int c, uint2 unit) {
            *reinterpret_cast<uint2*>(to + r * rows.columns + c) = unit;
          });
        } else {
          for_all([&](int r, int c, uint2 unit) {
            store_some(rows, row + g + r, first_column + c, unit);
          });
        }
      });
    }
  }

 private:
  using T = typename WIDENER::Element;

  static constexpr int kUnitElements = 4;

  // What of a unit is in the matrix and was requested. Not inlined: the ends of a matrix are few,
  // and this would be most of the code.
  __device__ __noinline__ static void store_some(const DenseRows& rows, int64_t row, int64_t column,
                                                 uint2 unit) {
    if (row < rows.begin_row || row >= rows.end_row) {
      return;
    }
    uint16_t* const to = rows.dense + (row - rows.begin_row) * rows.columns + column;
#pragma unroll
    for (int i = 0; i < kUnitElements; ++i) {
      if (column + i < rows.columns) {
        to[i] = static_cast<uint16_t>((i < 2 ? unit.x : unit.y) >> 16 * (i % 2));
      }
    }
  }

  // A row's scale. Products with it are rounded to T once, though f32 does not hold all of their
  // bits: they are cut off there, and `rest` is what their last bit then is. Values have up to 8
  // significant bits. With a scale of up to 16, f32 holds all of a product that is not subnormal;
  // with one of more, no product is a number of T or halfway between two, so that its last bit may
  // be set in any case.
  struct RowScale {
    float scale;
    uint32_t rest;

    RowScale() = default;
    __device__ explicit RowScale(float s) : scale(s) {
      constexpr uint32_t kFraction = (1u << 23) - 1;
      const uint32_t bits = __float_as_uint(s);
      const uint32_t fraction = (bits & kFraction) | (bits > kFraction ? kFraction + 1 : 0);
      constexpr int kExact = 16;
      const int significant = 33 - __clz(fraction) - __ffs(fraction);
      rest = significant > kExact ? 1 : 0;
    }
    __device__ T times(T value) const {
      const float cut = __fmul_rz(f32_of(value), scale);
      return from_f32<T>(__uint_as_float(__float_as_uint(cut) | rest));
    }
  };
  __device__ static uint32_t scaled(uint32_t pair, const RowScale& scale) {
    if constexpr (WIDENER::kLacksScales) {
      T two[2];
      memcpy(two, &pair, sizeof two);
      const T result[2] = {scale.times(two[0]), scale.times(two[1])};
      memcpy(&pair, result, sizeof pair);
    }
    return pair;
  }

  WIDENER widener_;
  int lane_;
};

}  // namespace sparsellm::tca_bme
