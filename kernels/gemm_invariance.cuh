#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/gemm_plan.cuh"
#include "kernels/tune/measure.cuh"

namespace sparsellm {

// What a batch-invariant plan is for: more tokens are computed in calls of so many.
inline constexpr int64_t kInvariantTokens = 1024;

// Tests whether a plan gives a row the same bits in any batch of up to kInvariantTokens, in rows
// aligned as those of `example`, whose x and y are neither read nor written. Takes memory for an x
// of 2,000 tokens and a y of 1,000; it synchronises.
class GemmInvariance {
 public:
  GemmInvariance(const GemmOperands& example, ExecContext& ctx);

  // The operands with random x, from its row `first` on.
  GemmOperands operands(int64_t first, int64_t tokens) const;

  // Plans of cuBLASLt, in its order, that never split K and can run for every number of tokens of
  // the test.
  std::vector<BlasPlan> candidates() const;
  // What is right whatever the test says: a row that is always computed alone.
  TokenwiseBlasPlan tokenwise_plan() const;

  bool passes(const GemmPlan& plan);

 private:
  // Rows aligned exactly as those of an example: a part of wider rows in `memory`.
  struct AlignedRows {
    AlignedRows(const Tensor& example, int64_t rows, ExecContext& ctx);

    OwnedTensor memory;
    Tensor view;
  };

  bool has_same_bits(const BlasPlan& plan, int64_t tokens);

  ExecContext& ctx_;
  GemmOperands example_;
  AlignedRows x_;
  AlignedRows y_;
  AlignedRows alone_;
  Comparison comparison_;
};

}  // namespace sparsellm
