#pragma once

#include "sparse/general_sparse/general_matrix.h"

namespace sparsellm::general_sparse {

// N, of B or of C.
inline int64_t columns_of(const Tensor& dense, Order order) {
  return dense.size(order == Order::rows ? 1 : 0);
}

// Throws Error unless B and C are as Matrix::multiply() has them, of this dtype.
void check_operands(const Matrix& a, DType dtype, const Tensor& b, const Tensor& c, Order order,
                    const ExecContext& ctx);

}  // namespace sparsellm::general_sparse
