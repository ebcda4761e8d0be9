#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/dtype.h"
#include "sparse/general_sparse/format/layout.h"
#include "sparse/general_sparse/general_matrix.h"
#include "sparse/general_sparse/plan.h"

namespace sparsellm::general_sparse {

// A product C = A * B that plans are searched for.
struct SearchedProduct {
  DType dtype = DType::f32;
  Layout layout = {};  // of A: groups apart, in one panel
  int64_t n = 1;       // columns of B
  Order order = Order::rows;
};

// The plans that a search chooses from, always in the same order.
std::vector<KernelPlan> searched_plans(const SearchedProduct& product);

}  // namespace sparsellm::general_sparse
