#pragma once

#include <cstdint>

#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// A matrix of elements of 2 or 4 bytes, rows `stride` elements apart.
struct MatrixPart {
  const void* data;
  int64_t stride;
  int64_t rows;
  int64_t columns;
};

// to [columns][to_stride]: to[c][r] = from[r][c], in this thread.
void transpose_part(const MatrixPart& from, int64_t element_bytes, void* to, int64_t to_stride);

// to [columns, rows] = from [rows, columns], transposed, on all threads; both on the CPU, of one
// dtype of 2 or 4 bytes, with strided rows if need be, and disjoint.
void transpose(const Tensor& from, const Tensor& to, ThreadPool& threads);

}  // namespace sparsellm
