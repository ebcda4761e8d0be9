#include <functional>
#include <vector>

#include "sparse/general_sparse/cuda/general_weight.cuh"
#include "sparse/weight_tuning.cuh"

namespace sparsellm::general_sparse {

std::vector<ProductPlan> CudaGeneralWeight::candidates(
    const PlannedProduct& product, const std::function<bool(const ProductPlan&)>& fits_all) const {
  std::vector<ProductPlan> plans;
  const auto add = [&](const ProductPlan& plan) {
    if (fits_all(plan)) {
      plans.push_back(plan);
    }
  };
  if (kernels_.slices) {
    for (const SliceConfig& config : slice_candidates(*kernels_.slices, product.tokens)) {
      add(config);
    }
  }
  if (kernels_.rows) {
    for (const RowConfig& config : row_candidates(*kernels_.rows, product.tokens)) {
      add(config);
    }
  }
  if (product.tokens >= kMinExpandedTokens || plans.empty()) {
    add(single_piece_expansion(out(), in()));
    for (const Expansion& expansion : overlapped_expansions(out(), in(), product.tokens)) {
      add(expansion);
    }
  }
  return plans;
}

int64_t CudaGeneralWeight::tune(const MatmulTuning& what, TuneCache& cache,
                                ExecContext& ctx) const {
  return tune_weights(*this, what, cache, ctx);
}

}  // namespace sparsellm::general_sparse
