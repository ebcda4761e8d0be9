#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "kernels/epilogue.h"
#include "sparse/weight_matrix.h"

namespace sparsellm {

struct WeightSizes {
  int64_t out = 0;
  int64_t in = 0;
};

// Throw Error for arguments that WeightMatrix::matmul() and expand() do not take.
void check_product(std::string_view format, const WeightSizes& sizes, const Tensor& x,
                   const Tensor& y, const Epilogue& epilogue, const ExecContext& ctx);
void check_expand(const WeightSizes& sizes, DType dtype, Range rows, const Tensor& dense,
                  const ExecContext& ctx);

}  // namespace sparsellm
