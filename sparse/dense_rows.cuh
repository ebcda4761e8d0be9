#pragma once

#include <cstdint>

// Where kernels write rows of a weight that they expand.
namespace sparsellm {

constexpr int kLaneElements = 8;  // that a lane writes at once, 16 bytes

struct DenseRows {
  uint16_t* dense;  // [end_row - begin_row, columns]
  int64_t begin_row;
  int64_t end_row;
  int64_t columns;
  bool aligned;  // every row, to 16 bytes
};
inline DenseRows dense_rows(void* dense, int64_t begin_row, int64_t rows, int64_t columns) {
  return {.dense = static_cast<uint16_t*>(dense),
          .begin_row = begin_row,
          .end_row = begin_row + rows,
          .columns = columns,
          .aligned = columns % kLaneElements == 0 && reinterpret_cast<uintptr_t>(dense) % 16 == 0};
}

// What of eight elements of a row, from a column on, is in the matrix and was requested.
__device__ inline void store_eight(const DenseRows& p, int64_t row, int64_t column,
                                   const uint4& values) {
  if (row < p.begin_row || row >= p.end_row || column >= p.columns) {
    return;
  }
  uint16_t* const to = p.dense + (row - p.begin_row) * p.columns + column;
  if (p.aligned) {  // then the columns are a multiple of 8
    *reinterpret_cast<uint4*>(to) = values;
    return;
  }
  const uint32_t words[] = {values.x, values.y, values.z, values.w};
#pragma unroll
  for (int i = 0; i < kLaneElements; ++i) {
    if (column + i < p.columns) {
      to[i] = static_cast<uint16_t>(words[i / 2] >> 16 * (i % 2));
    }
  }
}

}  // namespace sparsellm
