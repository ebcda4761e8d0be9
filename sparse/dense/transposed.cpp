#include "sparse/dense/transposed.h"

#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/checks.h"
#include "kernels/gemm.h"
#include "kernels/transpose.h"

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
  transpose(transpose_.view.columns(rows.begin, rows.count), dense, ctx);
}

int64_t TransposedWeight::workspace_bytes(int64_t tokens, Sums) const {
  return gemm_workspace_bytes(transpose_.view.device(), in(), tokens);
}

int64_t TransposedWeight::tune(const MatmulTuning& what, TuneCache& cache, ExecContext& ctx) const {
  std::vector<Tensor> weights;
  for (const WeightMatrix* weight : what.alike) {
    const auto* const transposed = dynamic_cast<const TransposedWeight*>(weight);
    require(transposed != nullptr, "a transposed weight is not like one in format {}",
            weight->format());
    weights.push_back(transposed->transpose_.view);
  }
  return tune_gemm({.weights = weights,
                    .order = WeightOrder::in_out,
                    .epilogue = what.epilogue,
                    .y = what.y,
                    .tokens = what.tokens},
                   cache, ctx);
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
