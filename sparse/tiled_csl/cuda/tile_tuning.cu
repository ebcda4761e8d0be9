#include <functional>
#include <vector>

#include "sparse/tiled_csl/cuda/tile_weight.cuh"
#include "sparse/weight_tuning.cuh"

namespace sparsellm::tiled_csl {

std::vector<TilePlan> CudaTileWeight::candidates(
    const PlannedProduct& product, const std::function<bool(const TilePlan&)>& fits_all) const {
  std::vector<TilePlan> plans;
  const auto add = [&](const TilePlan& plan) {
    if (fits_all(plan)) {
      plans.push_back(plan);
    }
  };
  if (product.y == dtype_) {
    for (const TileMatmulConfig& config : tile_matmul_candidates(matrix_, product.tokens)) {
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

int64_t CudaTileWeight::tune(const MatmulTuning& what, TuneCache& cache, ExecContext& ctx) const {
  return tune_weights(*this, what, cache, ctx);
}

}  // namespace sparsellm::tiled_csl
