#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sparse/encoded_weight.h"
#include "sparse/general_sparse/format/layout.h"
#include "sparse/general_sparse/plan.h"
#include "sparse/matrices/compressed_rows.h"

namespace sparsellm::testing {

// A small matrix of f32, whose values are whole numbers from -4 to 4 without 0: sums of products
// with such numbers are exact.
struct PlanMatrixCase {
  std::string name;
  CompressedRows m;
};

// Rows of these lengths, in columns drawn at random.
CompressedRows matrix_of_lengths(const std::vector<int64_t>& lengths, int64_t columns,
                                 uint64_t seed);

// Uniform and uneven ones, blocks, with empty rows, a huge row, without rows, columns or nonzeros,
// dense ones, and of a single element.
std::vector<PlanMatrixCase> plan_matrices();

// A layout that the plan multiplies by: its unit has at least the plan's vector.
general_sparse::Layout plan_layout(const general_sparse::KernelPlan& plan, int shared_rows,
                                   bool wide_positions, bool sorted);

}  // namespace sparsellm::testing
