#include "sparse/activation/row_access.h"

#include "kernels/base/error.h"
#include "kernels/cpu/dense_kernels.h"

namespace sparsellm {

DenseRows::DenseRows(const Tensor& weight) : weight_(weight) {
  require(weight.rank() == 2 && is_floating(weight.dtype()), "rows of a weight that is {} {}",
          name_of(weight.dtype()), weight.shape_string());
}

void DenseRows::multiply(std::span<const int32_t> rows, const float* x, float* sums,
                         CpuIsa isa) const {
  dense_kernels_for(isa, weight_.dtype())
      .multiply_listed({.w = weight_.raw(),
                        .w_stride = weight_.row_stride(),
                        .rows = rows.data(),
                        .count = std::ssize(rows),
                        .x = x,
                        .columns = columns(),
                        .sums = sums});
}

void DenseRows::sum(const Terms& terms, Range columns, float* sums, CpuIsa isa) const {
  dense_kernels_for(isa, weight_.dtype())
      .sum_listed({.w = weight_.columns(columns.begin, columns.count).raw(),
                   .w_stride = weight_.row_stride(),
                   .rows = terms.rows.data(),
                   .factors = terms.factors,
                   .count = std::ssize(terms.rows),
                   .next = terms.next,
                   .columns = columns.count,
                   .sums = sums});
}

}  // namespace sparsellm
