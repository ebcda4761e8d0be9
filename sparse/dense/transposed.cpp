#include "sparse/dense/transposed.h"

#include <utility>

#include "kernels/base/error.h"
#include "kernels/checks.h"
#include "kernels/cpu/transpose.h"
#include "kernels/gemm.h"

namespace sparsellm {

TransposedWeight::TransposedWeight(OwnedTensor transpose) : transpose_(std::move(transpose)) {
  require(transpose_.view.rank() == 2, "the transpose of a weight has 2 dimensions, not {}",
          transpose_.view.shape_string());
}

TransposedWeight::TransposedWeight(const Tensor& transpose)
    : TransposedWeight(OwnedTensor{.buffer = {}, .view = transpose}) {}

void TransposedWeight::matmul(const Tensor& x, Tensor y, const Epilogue& epilogue,
                              ExecContext& ctx) const {
  gemm_transposed(x, transpose_.view, epilogue, y, ctx);
}

void TransposedWeight::expand(Range rows, Tensor dense, ExecContext& ctx) const {
  check_tensor({"expand", "dense"}, dense, Elements::floating, {rows.count, in()}, ctx);
  check_same_dtype({"expand", "dense and the weight"}, dense, transpose_.view);
  check_on_cpu("expand of a transposed weight", ctx);
  transpose(transpose_.view.columns(rows.begin, rows.count), dense, ctx.threads);
}

int64_t TransposedWeight::workspace_bytes(int64_t tokens, Sums) const {
  return gemm_workspace_bytes(transpose_.view.device(), in(), tokens);
}

std::unique_ptr<WeightMatrix> TransposedWeight::copy() const {
  const Tensor& from = transpose_.view;
  if (!from.contiguous()) {
    return nullptr;
  }
  OwnedTensor to = allocate_tensor(from.device(), from.dtype(), {from.size(0), from.size(1)},
                                   "a copy of a weight");
  copy_bytes(from.device(), to.view.raw(), from.device(), from.raw(), from.bytes());
  return std::make_unique<TransposedWeight>(std::move(to));
}

}  // namespace sparsellm
