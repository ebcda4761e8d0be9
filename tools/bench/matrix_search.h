#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/kernel_cache.h"
#include "tools/bench/matrix_contender.h"

namespace sparsellm {

// general_sparse with the fastest of `plans` generated kernels for each product, on CUDA.
struct MatrixSearch {
  int64_t plans = 0;  // 0: none
  // Also among fewer plans, as the ablation of GeneralSparse (Wang et al., ATC 2025): first a block
  // for each row, whose threads load one nonzero at a time; then all divisions and loads, but no
  // reductions of several rows; then all plans; then these and the kernels of the program.
  bool stages = false;
  KernelCache::Options kernels = {};
};

// In this order, the last one always: "general_sparse block per row", "general_sparse + division",
// "general_sparse + reductions", "general_sparse searched".
std::vector<MatrixContenderKind> searched_contenders(const MatrixSearch& search);

}  // namespace sparsellm
