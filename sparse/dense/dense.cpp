#include "sparse/dense/dense.h"

#include <utility>
#include <vector>

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

}  // namespace sparsellm
