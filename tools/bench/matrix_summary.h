#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/bench/matrix_bench.h"

namespace sparsellm {

// How a contender fares against the fastest of the sparse libraries over the matrices of a run.
// What failed, or had nothing to be compared with, is no part of the mean, and in none of the
// shares.
struct MatrixSummary {
  std::string contender = {};
  general_sparse::Order order = general_sparse::Order::rows;
  std::optional<int64_t> n = {};  // none: of all
  std::string matrix_class = {};  // empty: of all
  int64_t cells = 0;              // results
  int64_t failed = 0;             // of these
  double geometric_mean = 0.0;    // of the speed-ups; 0 if there are none
  double share_not_slower = 0.0;  // of the cells: a speed-up of at least 1,
  double share_faster = 0.0;      // 1.2
  double share_twice = 0.0;       // and 2
  double worst_speedup = 0.0;     // 0 if there are none
  std::string worst_matrix = {};
};

// By contender and order in the order in which they come, N, and class; then over all classes, and
// if there are several N, over these too.
std::vector<MatrixSummary> summarize_matrices(std::span<const MatrixResult> results);

}  // namespace sparsellm
