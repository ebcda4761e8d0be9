#include "sparse/dense/dense.h"

#include <utility>

#include "kernels/base/error.h"
#include "kernels/gemm.h"

namespace sparsellm {

DenseWeight::DenseWeight(OwnedTensor weight) : weight_(std::move(weight)) {
  require(weight_.view.rank() == 2, "a dense weight has 2 dimensions, not {}",
          weight_.view.shape_string());
}

DenseWeight::DenseWeight(const Tensor& weight)
    : DenseWeight(OwnedTensor{.buffer = {}, .view = weight}) {}

void DenseWeight::matmul(const Tensor& x, Tensor y, const Epilogue& epilogue,
                         ExecContext& ctx) const {
  gemm(x, weight_.view, epilogue, y, ctx);
}

}  // namespace sparsellm
