#pragma once

#include <vector>

#include "kernels/gemm_blas.cuh"

namespace sparsellm {

// The plans of cuBLASLt that are worth timing on these operands, no two alike, and all can run on
// them. Comparisons with cuBLASLt and the tuning of our own products take these, so that
// neither finds what the other was not offered:
//   - kMaxProposals of cuBLASLt for these operands, what it believes to be the fastest first,
//   - its proposals for 8 tokens, if there are fewer, and for the token bucket (token_buckets.h),
//   - for up to 128 tokens the first of all these with K split into 2, 4 and 8 parts.
// Nothing runs.
std::vector<BlasPlan> blas_candidates(const CudaContext::State& cuda, const GemmOperands& operands);

// Adds the plan if its algorithm is none of theirs.
void add_new_plan(const BlasPlan& plan, std::vector<BlasPlan>& plans);

}  // namespace sparsellm
