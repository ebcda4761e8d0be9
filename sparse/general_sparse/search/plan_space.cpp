#include "sparse/general_sparse/search/plan_space.h"

#include <algorithm>

namespace sparsellm::general_sparse {
namespace {

constexpr int kMostBytesOfLoad = 16;

// The most of `count` elements that one load has, if they are adjacent.
int widest(int count, int value_bytes) { return std::min(count, kMostBytesOfLoad / value_bytes); }

}  // namespace

std::vector<KernelPlan> searched_plans(const SearchedProduct& product) {
  const auto value_bytes = static_cast<int>(size_of(product.dtype));
  std::vector<KernelPlan> plans = enumerate_plans({.tokens = product.n,
                                                   .value_bytes = value_bytes,
                                                   .threads = {128, 256},
                                                   .thread_nonzeros = {0, 4, 16},
                                                   .steps = {1, 2, 4, 8}});
  std::erase_if(plans, [&](const KernelPlan& plan) {
    const bool transposed = plan.x_order == XOrder::transposed;
    return plan.a_vector != std::min(plan.step_nonzeros, product.layout.vector) ||
           plan.x_vector != (transposed ? widest(plan.tokens_per_thread, value_bytes) : 1) ||
           plan.warps_per_group > 2 || (product.order == Order::rows && !transposed) ||
           (product.order == Order::columns && product.n == 1 && transposed);
  });
  return plans;
}

}  // namespace sparsellm::general_sparse
