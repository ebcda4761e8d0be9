#include <cstdint>
#include <functional>
#include <vector>

#include "sparse/tca_bme/cuda/record_weight.cuh"
#include "sparse/weight_tuning.cuh"

namespace sparsellm::tca_bme {
namespace {

constexpr size_t kMaxWgmmaConfigs = 12;  // the best guesses are among them

}  // namespace

// Decoding competes with an expansion up to kMaxDecodedTokens, warpgroups do for any number of
// tokens that they take.
std::vector<RecordPlan> CudaRecordWeight::candidates(
    const PlannedProduct& product, const std::function<bool(const RecordPlan&)>& fits_all) const {
  std::vector<RecordPlan> plans;
  const auto add_fitting = [&](const auto& configs, size_t most) {
    for (const auto& config : configs) {
      if (most > 0 && fits_all(config)) {
        plans.emplace_back(config);
        --most;
      }
    }
  };
  if (product.tokens <= kMaxDecodedTokens) {
    add_fitting(configs_for(product.y, product.tokens), SIZE_MAX);
  }
  add_fitting(wgmma_configs_for(product.y, product.tokens), kMaxWgmmaConfigs);
  if (product.overlaps_pieces && (product.tokens >= kMinExpandedTokens || plans.empty())) {
    for (const Expansion& expansion : overlapped_expansions(out(), in(), product.tokens)) {
      plans.emplace_back(expansion);
    }
  }
  if (plans.empty()) {
    plans.push_back(rule_plan(product.y, product.tokens));
  }
  return plans;
}

int64_t CudaRecordWeight::tune(const MatmulTuning& what, TuneCache& cache, ExecContext& ctx) const {
  return tune_weights(*this, what, cache, ctx);
}

}  // namespace sparsellm::tca_bme
