#pragma once

#include <span>

#include "kernels/base/tune_cache.h"
#include "kernels/gemm_blas.cuh"

namespace sparsellm {

struct MeasuredGemm {
  GemmPlan plan;
  double seconds = 0.0;  // of one call; 0 if no measurement was possible
};

// The fastest plan for these operands, with values in all of them, of blas_candidates() and our own
// kernels; y is overwritten. `weights` stand in for w in turn. Synchronises, and allocates while it
// runs.
MeasuredGemm measure_fastest_plan(const GemmOperands& operands, std::span<const Tensor> weights,
                                  ExecContext& ctx);

// The same of these plans, which can run on the operands.
MeasuredGemm measure_fastest_of(std::span<const GemmPlan> plans, const GemmOperands& operands,
                                std::span<const Tensor> weights, ExecContext& ctx);

// The fastest of blas_candidates() alone, for exactly so many tokens: what a program gets that
// tries them all on the calls that it makes. Found in the cache, or measured and put into it.
GemmPlan tuned_blas_plan(const GemmOperands& operands, std::span<const Tensor> weights,
                         TuneCache& cache, ExecContext& ctx);

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
