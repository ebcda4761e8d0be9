#pragma once

#include <cstdint>
#include <vector>

#include "sparse/general_sparse/search/cost_model.h"
#include "sparse/general_sparse/search/plan_space.h"

namespace sparsellm::general_sparse {

struct RankedPlan {
  KernelPlan plan = {};
  PlanFeatures features = {};
  double seconds = 0.0;  // as predicted
};

// The plans that a search chooses from, those first that the model takes for the fastest. `counts`:
// of the matrix.
std::vector<RankedPlan> ranked(const SearchedProduct& product, PlanCounts& counts,
                               const CostModel& model);

}  // namespace sparsellm::general_sparse
