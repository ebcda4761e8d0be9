#pragma once

#include <cstdint>

#include "kernels/base/tensor.h"

namespace sparsellm {

// A matrix of f16 or bf16 that an encoder on a CUDA device reads, two neighbours of a row at a
// time.
struct DenseSource {
  const uint16_t* data;
  int64_t stride;  // of rows, in elements
  int64_t rows;
  int64_t columns;
  bool aligned;  // pairs of elements, to 4 bytes
};

inline DenseSource dense_source(const Tensor& w) {
  return {.data = static_cast<const uint16_t*>(w.raw()),
          .stride = w.row_stride(),
          .rows = w.size(0),
          .columns = w.size(1),
          .aligned = reinterpret_cast<uintptr_t>(w.raw()) % 4 == 0 && w.row_stride() % 2 == 0};
}

// The elements of a row from an even column on, as their bits; 0 outside of the matrix.
__device__ inline uint32_t load_two(const DenseSource& w, int64_t row, int64_t column) {
  if (row >= w.rows || column >= w.columns) {
    return 0;
  }
  const uint16_t* const first = w.data + row * w.stride + column;
  if (column + 1 == w.columns) {
    return *first;
  }
  return w.aligned ? *reinterpret_cast<const uint32_t*>(first) : first[0] | first[1] << 16;
}

// Bit 0: the first element of a pair is neither 0 nor -0; bit 16: the second is not.
__device__ inline uint32_t nonzero_bits(uint32_t pair) {
  constexpr uint32_t kMagnitudes = 0x7fff7fffu;
  // The sum carries into the top bit of an element unless its magnitude is 0, and no further.
  return ((pair & kMagnitudes) + kMagnitudes) >> 15 & 0x00010001u;
}

}  // namespace sparsellm
