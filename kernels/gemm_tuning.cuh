#pragma once

#include <span>

#include "kernels/gemm_blas.cuh"

namespace sparsellm {

struct MeasuredGemm {
  GemmPlan plan;
  double seconds = 0.0;  // of one call; 0 if no measurement was possible
};

// The fastest plan for these operands, with values in all of them; y is overwritten. `weights`
// stand in for w in turn. Synchronises, and allocates while it runs.
MeasuredGemm measure_fastest_plan(const GemmOperands& operands, std::span<const Tensor> weights,
                                  ExecContext& ctx);

// A plan that gives a row the same bits in any batch, for up to kInvariantTokens in rows aligned as
// those of `example`, whose x and y are neither read nor written: of those that pass a test the one
// that cuBLASLt proposes first, so that every run with this library on this device finds the same.
// Synchronises, and allocates while it runs.
inline constexpr int64_t kInvariantTokens = 1024;
MeasuredGemm measure_invariant_plan(const GemmOperands& example, std::span<const Tensor> weights,
                                    ExecContext& ctx);

// Whether a plan passes that test.
bool is_invariant(const GemmPlan& plan, const GemmOperands& example, ExecContext& ctx);

}  // namespace sparsellm
