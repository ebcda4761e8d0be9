#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>

#include "sparse/general_sparse/general_matrix.h"
#include "sparse/general_sparse/plan.h"
#include "sparse/general_sparse/search/matrix_sample.h"

namespace sparsellm::general_sparse {

// What the time of a product by a plan's kernels is a linear function of (GeneralSparse, Wang et
// al., ATC 2025: its cost model adds up the costs of memory access and of reductions). Bytes and
// counts are in millions; "step" is one of a warp, in which each thread has plan.step_nonzeros.
enum class PlanFeature : unsigned char {
  launch,            // 1
  a_bytes,           // of A, once
  a_reread_bytes,    // of A, for other tiles and warps with other tokens
  b_bytes,           // of B, once
  b_gathered_bytes,  // of B from the L2: a column that occurs several times in 1,024 consecutive
                     // entries counts once
  c_bytes,           // written, in whole sectors
  zeros,             // of C, in rows without entries
  transposed_bytes,  // of B, read and written by a transposition
  steps,
  products,          // steps, times multiply-adds of a thread
  gathers,           // steps, times loads of B of a thread
  wavefronts,        // steps, times sectors of B that a warp reads
  resident_steps,    // of the slowest warp, summed over blocks, times their warps
  longest,           // steps of the slowest warp, not in millions
  longest_products,  // its multiply-adds of a thread, likewise
  longest_gathers,   // its loads of B of a thread
  longest_lines,     // lines of 128 bytes that a thread of it reads positions from, likewise
  warps,
  thread_bitmaps,  // steps, times the sums of a thread, if threads have several rows
  warp_totals,     // of warps, times the sums of a thread and the levels of the tree
  warp_bitmaps,    // likewise
  warp_segments,
  block_totals,  // warps, times the sums of a thread and the warps of a block
  block_bitmaps,
  block_segments,
  split_rows,     // sums of rows that several blocks have, and a launch (a thousandth)
  longest_split,  // blocks that share a row, at most, not in millions
  count,          // not a feature
};
constexpr size_t kPlanFeatures = static_cast<size_t>(PlanFeature::count);
std::string_view name_of(PlanFeature feature);

using PlanFeatures = std::array<double, kPlanFeatures>;

// Of the plans for one matrix. Numbers of steps are counted once for plans that divide the nonzeros
// alike.
class PlanCounts {
 public:
  explicit PlanCounts(const MatrixSample& sample) : sample_(sample) {}

  // Of a product with n columns of B, by a valid plan that the matrix can be multiplied by.
  PlanFeatures features(const KernelPlan& plan, int64_t n, Order order);

 private:
  struct Steps {
    double blocks = 0.0;
    double of_warps = 0.0;   // summed
    double of_blocks = 0.0;  // of the slowest warp of each, summed
    double longest = 0.0;
    double split_rows = 0.0;
    double longest_split = 0.0;  // blocks
  };
  // All that the division of the nonzeros depends on.
  using DivisionKey = std::tuple<int, int, int, int, int, int, int, int>;

  const Steps& steps(const KernelPlan& plan);
  void add_steps(const RowSample& rows, const KernelPlan& plan, Steps& steps) const;

  const MatrixSample& sample_;
  std::map<DivisionKey, Steps> steps_;
};

}  // namespace sparsellm::general_sparse
