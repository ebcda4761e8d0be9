#include <algorithm>
#include <cstring>
#include <optional>

#include "kernels/base/token_buckets.h"
#include "kernels/gemm_candidates.cuh"

namespace sparsellm {
namespace {

// What cuBLASLt proposes for more tokens may be faster than what it proposes for so many.
void add_proposals_for(int64_t tokens, const CudaContext::State& cuda, const GemmOperands& operands,
                       std::vector<BlasPlan>& plans) {
  if (tokens <= operands.x.size(0)) {
    return;
  }
  const auto rows_of = [tokens](const Tensor& x) {  // whose values are not read
    return Tensor(x.raw(), x.dtype(), {tokens, x.row_stride()}, x.device()).columns(0, x.size(1));
  };
  GemmOperands more = operands;
  more.x = rows_of(operands.x);
  more.y = rows_of(operands.y);
  for (const BlasPlan& plan : heuristic_plans(cuda, more, kMaxProposals)) {
    if (is_possible(cuda, operands, plan)) {
      add_new_plan(plan, plans);
    }
  }
}

// For few tokens there are too few tiles to fill the device: the best proposals with other splits
// of K.
void add_splits(const CudaContext::State& cuda, const GemmOperands& operands,
                std::vector<BlasPlan>& plans) {
  constexpr int64_t kMaxTokens = 128;
  constexpr size_t kBases = 4;
  if (operands.x.size(0) > kMaxTokens) {
    return;
  }
  const std::vector<BlasPlan> bases(
      plans.begin(), plans.begin() + static_cast<int64_t>(std::min(kBases, plans.size())));
  const auto add = [&](const std::optional<BlasPlan>& plan) {
    if (plan && is_possible(cuda, operands, *plan)) {
      add_new_plan(*plan, plans);
    }
  };
  for (const BlasPlan& base : bases) {
    for (int32_t splits : {2, 4, 8}) {
      add(with_k_splits(base, splits));
      if (operands.partial_sums == PartialSums::any) {
        add(with_k_splits(base, splits, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE));
      }
    }
  }
}

}  // namespace

void add_new_plan(const BlasPlan& plan, std::vector<BlasPlan>& plans) {
  const auto same = [&](const BlasPlan& other) {
    return std::memcmp(&plan.algorithm, &other.algorithm, sizeof(plan.algorithm)) == 0;
  };
  if (std::none_of(plans.begin(), plans.end(), same)) {
    plans.push_back(plan);
  }
}

std::vector<BlasPlan> blas_candidates(const CudaContext::State& cuda,
                                      const GemmOperands& operands) {
  constexpr int64_t kFewTokens = 8;
  std::vector<BlasPlan> plans;
  for (const BlasPlan& plan : heuristic_plans(cuda, operands, kMaxProposals)) {
    add_new_plan(plan, plans);
  }
  add_proposals_for(kFewTokens, cuda, operands, plans);
  add_proposals_for(token_bucket(operands.x.size(0)), cuda, operands, plans);
  add_splits(cuda, operands, plans);
  return plans;
}

}  // namespace sparsellm
