#pragma once

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// y [columns, rows] = the transpose of x [rows, columns], element by element, bit by bit: f16, bf16
// or f32, of one dtype; rows of x and of y may be strided. y must not overlap x. On CUDA it is
// fastest where all rows begin at multiples of 16 bytes.
void transpose(const Tensor& x, Tensor y, ExecContext& ctx);

}  // namespace sparsellm
