#include "sparse/general_sparse/search/plan_search.h"

#include <algorithm>

namespace sparsellm::general_sparse {

std::vector<RankedPlan> ranked(const SearchedProduct& product, PlanCounts& counts,
                               const CostModel& model) {
  std::vector<RankedPlan> result;
  for (const KernelPlan& plan : searched_plans(product)) {
    const PlanFeatures features = counts.features(plan, product.n, product.order);
    result.push_back({.plan = plan,
                      .features = features,
                      .seconds = model.seconds(access_class(plan), features)});
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const RankedPlan& a, const RankedPlan& b) { return a.seconds < b.seconds; });
  return result;
}

}  // namespace sparsellm::general_sparse
