#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "kernels/gemm_blas.cuh"
#include "kernels/gemm_stream_cuda.h"

namespace sparsellm {

// One call of cuBLASLt for each token.
struct TokenwiseBlasPlan {
  BlasPlan token;
};
// Our streaming kernel.
struct StreamPlan {
  StreamMemory memory = StreamMemory::half;
};

// How a product is computed; a BlasPlan is one call of cuBLASLt for all tokens.
using GemmPlan = std::variant<BlasPlan, TokenwiseBlasPlan, StreamPlan>;

// As for a BlasPlan.
bool is_possible(const CudaContext::State& cuda, const GemmOperands& operands,
                 const GemmPlan& plan);
cublasStatus_t enqueue_gemm(const GemmOperands& operands, const GemmPlan& plan,
                            const ExecContext& ctx);

// "cublaslt <algorithm>", "cublaslt each token <algorithm>", with an algorithm as 8 words in hex,
// or "stream half" and "stream whole"; and back: nothing for other text.
std::string to_text(const GemmPlan& plan);
std::optional<GemmPlan> gemm_plan_from(std::string_view text);

}  // namespace sparsellm
