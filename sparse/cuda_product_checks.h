#pragma once

#include "sparse/weight_matrix.h"

namespace sparsellm {

// The rules of products of encoded weights on CUDA devices. Throws Error that begins with the
// weight's format.
void check_cuda_product(const WeightMatrix& weight, const Tensor& x, const Tensor& y,
                        const Epilogue& epilogue, const ExecContext& ctx);
// Those of WeightMatrix::expand().
void check_cuda_expansion(const WeightMatrix& weight, Range rows, const Tensor& dense,
                          const ExecContext& ctx);

}  // namespace sparsellm
