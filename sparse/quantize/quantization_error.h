#pragma once

#include <cstdint>

#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"
#include "sparse/quantize/quantized_matrix.h"

namespace sparsellm {

// What rounding to narrow values changed.
struct QuantizationError {
  double squared_error = 0.0;    // sum of (w - code's value * scale)^2
  double squared_weights = 0.0;  // sum of w^2
  int64_t nonzeros = 0;          // of w
  int64_t lost = 0;              // nonzeros of w that became zero
  // Rows, or of i4 groups of columns in a row, that share a scale and have nonzeros; those of them
  // whose nonzeros are all lost, and those with a weight too large for the largest scale of i4.
  int64_t groups = 0;
  int64_t lost_groups = 0;
  int64_t clipped_groups = 0;

  // The norm of the error over that of the weights; 0 where all are as they were.
  double relative() const;
  QuantizationError& operator+=(const QuantizationError& other);  // of several matrices together
};

// Of products that are not rounded. w [rows, columns] is f16, bf16 or f32, in host memory; its rows
// may be strided. The same for any number of threads. Throws Error for a matrix of another shape,
// or one that is not valid.
QuantizationError quantization_error(const Tensor& w, const QuantizedMatrix& q,
                                     ThreadPool& threads);

}  // namespace sparsellm
