#pragma once

#include <span>

#include "kernels/base/tune_cache.h"
#include "kernels/gemm_plan.cuh"
#include "kernels/tune/tuner.h"

namespace sparsellm {

// Choices of plans for gemm() and gemm_transposed() by kernels/tune/tuner.h, which says what they
// take and where they are kept. All operands have values; y is overwritten. `weights` take turns in
// the place of w.

// The fastest of blas_candidates() alone, for exactly so many tokens: what a program gets that
// tries them all on the calls that it makes.
BlasPlan tuned_blas_plan(const GemmOperands& operands, std::span<const Tensor> weights,
                         TuneCache& cache, ExecContext& ctx);

// A plan that gives a row the same bits in any batch, in rows aligned as those of `example`, whose
// x and y are neither read nor written: of those that pass a test (kernels/gemm_invariance.cuh) the
// one that cuBLASLt proposes first.
Tuned<GemmPlan> tuned_invariant_plan(const GemmOperands& example, std::span<const Tensor> weights,
                                     TuneCache& cache, ExecContext& ctx);

}  // namespace sparsellm
