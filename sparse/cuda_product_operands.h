#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"

namespace sparsellm {

// Of a product with an encoded matrix [rows, columns] on a CUDA device: y [tokens, rows] =
// x [tokens, columns] * matrix^T + bias, or the greater of that and 0, in f16 or bf16 with f32
// sums. Nothing after a row's `columns` elements of x is read.
struct CudaProductOperands {
  const void* x = nullptr;
  int64_t x_stride = 0;  // of rows, in elements, as y_stride
  void* y = nullptr;
  int64_t y_stride = 0;
  const void* bias = nullptr;  // [rows] or null
  bool relu = false;
  int64_t tokens = 0;
  DType dtype = DType::f16;
  // Of kernels that ask for one: as large as they say, aligned to 16 bytes.
  void* workspace = nullptr;
};

}  // namespace sparsellm
