#include "sparse/dense/dense.h"

#include <utility>
#include <vector>

#include "kernels/base/cuda_context.h"
#include "kernels/base/error.h"
#include "kernels/checks.h"
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

void DenseWeight::expand(Range rows, Tensor dense, ExecContext& ctx) const {
  check_tensor({"expand", "dense"}, dense, Elements::floating, {rows.count, in()}, ctx);
  check_same_dtype({"expand", "dense and the weight"}, dense, weight_.view);
  const Tensor from = weight_.view.rows(rows.begin, rows.count);
  require(from.contiguous() && dense.contiguous(), "expand: strided rows");
  if (ctx.device.is_cuda()) {
    ctx.cuda->copy_async(dense.raw(), from.raw(), from.bytes(), ctx.queue);
  } else {
    copy_bytes(ctx.device, dense.raw(), ctx.device, from.raw(), from.bytes());
  }
}

int64_t DenseWeight::workspace_bytes(int64_t tokens, Sums) const {
  return gemm_workspace_bytes(weight_.view.device(), in(), tokens);
}

int64_t DenseWeight::tune(const MatmulTuning& what, TuneCache& cache, ExecContext& ctx) const {
  std::vector<Tensor> weights;
  for (const WeightMatrix* weight : what.alike) {
    const auto* const dense = dynamic_cast<const DenseWeight*>(weight);
    require(dense != nullptr, "a dense weight is not like one in format {}", weight->format());
    weights.push_back(dense->weight_.view);
  }
  return tune_gemm(
      {.weights = weights, .epilogue = what.epilogue, .y = what.y, .tokens = what.tokens}, cache,
      ctx);
}

std::unique_ptr<WeightMatrix> DenseWeight::copy() const {
  const Tensor& from = weight_.view;
  if (!from.contiguous()) {
    return nullptr;
  }
  OwnedTensor to = allocate_tensor(from.device(), from.dtype(), {from.size(0), from.size(1)},
                                   "a copy of a weight");
  copy_bytes(from.device(), to.view.raw(), from.device(), from.raw(), from.bytes());
  return std::make_unique<DenseWeight>(std::move(to));
}

}  // namespace sparsellm
