#pragma once

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "kernels/epilogue.h"

namespace sparsellm {

// y [tokens, out] = epilogue(x [tokens, in] * w^T), w [out, in] in any floating dtype, x and y in
// the dtype of the activations. y must not overlap x; rows of x, w and y may be strided. Sums are
// taken in f32, in an order that depends on `in` alone: a row of y has the same bits in any batch.
void gemm(const Tensor& x, const Tensor& w, const Epilogue& epilogue, Tensor y, ExecContext& ctx);

}  // namespace sparsellm
