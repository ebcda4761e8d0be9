#pragma once

#include <cstdint>
#include <vector>

#include "tools/bench/matrix_contender.h"

namespace sparsellm {

// general_sparse with the fastest of `plans` generated kernels for each product, on CUDA.
struct MatrixSearch {
  int64_t plans = 0;  // 0: none
  // Also with parts of what there is to choose from, each with what is in those before
  // (GeneralSparse, Wang et al., ATC 2025, its ablation): a block for each row, whose threads load
  // one nonzero after the other; other divisions, several loads at once and vectors, with sums of
  // one row; reductions of several rows; all of these and the kernels of the program.
  bool stages = false;
};

// In this order, the last one always: "general_sparse block per row", "general_sparse + division",
// "general_sparse + reductions", "general_sparse searched".
std::vector<MatrixContenderKind> searched_contenders(const MatrixSearch& search);

}  // namespace sparsellm
