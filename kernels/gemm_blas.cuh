#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/cuda_state.cuh"
#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "kernels/gemm.h"

namespace sparsellm {

// What the sums of parts of K may be rounded to before they are added, where K is split.
enum class PartialSums : uint8_t {
  f32,  // not at all
  any,  // also to y's dtype, which PyTorch allows unless it is told otherwise
};

// gemm() and gemm_transposed() in the terms of cuBLASLt, which counts in columns: y^T [out, tokens]
// = w [out, in] * x^T [in, tokens] + bias. A weight that is stored as [in, out], row by row, is
// that w column by column; one that is stored as [out, in] is its transpose, and cuBLASLt
// transposes it.
// Comparisons with products in FP8 have x and w in u8, the bits of e4m3 (Micikevicius et al., FP8
// Formats for Deep Learning, 2022), with one scale that the values of both are multiplied by.
// cuBLASLt takes these from compute capability 8.9 on, both weights and x with rows that are
// multiples of 16 bytes, and `out` a multiple of 16.
struct GemmOperands {
  Tensor x;
  Tensor w;  // as stored
  WeightOrder order = WeightOrder::out_in;
  Tensor bias;  // [out] or empty
  Tensor y;
  bool relu = false;
  PartialSums partial_sums = PartialSums::f32;  // gemm() never takes another
  // f32 [1], of w and of x, at an address that cuBLASLt takes: a multiple of 16; empty without FP8.
  Tensor fp8_scale = {};

  int64_t out() const { return y.size(1); }
  int64_t in() const { return x.size(1); }
  // The same for tokens [begin, begin + count).
  GemmOperands tokens(int64_t begin, int64_t count) const;
};

// An algorithm of cuBLASLt.
struct BlasPlan {
  cublasLtMatmulAlgo_t algorithm{};
};

// What the rows of a matrix are aligned to, in bytes; at most as much as cuBLASLt makes use of.
// Equal for any rows of a matrix that begins at a multiple of that.
inline constexpr int64_t kMaxAlignment = 256;
int64_t row_alignment(const Tensor& x);

// Throws Error unless the product takes these on CUDA, whatever the sizes.
void check_gemm_operands(const GemmOperands& operands);

// Up to kMaxProposals plans, what cuBLASLt believes to be the fastest first, with such partial
// sums as the operands allow. Nothing runs: may be called while a graph is captured.
inline constexpr int kMaxProposals = 64;
std::vector<BlasPlan> heuristic_plans(const CudaContext::State& cuda, const GemmOperands& operands,
                                      int count);

// The first of them. Throws Error if there is none.
BlasPlan heuristic_plan(const CudaContext::State& cuda, const GemmOperands& operands);

// Whether the plan can run on these operands: cuBLASLt in its workspace, with such partial sums as
// the operands allow.
bool is_possible(const CudaContext::State& cuda, const GemmOperands& operands,
                 const BlasPlan& plan);

// The number of parts that K is split into is one of the settings of an algorithm of cuBLASLt; not
// every algorithm has it.
int32_t k_splits(const BlasPlan& plan);
std::optional<BlasPlan> with_k_splits(
    BlasPlan plan, int32_t splits,
    cublasLtReductionScheme_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);

// The plan in one line, for reports: "algorithm 66, tile 20, stages 35, 2 splits of K".
std::string description_of(const BlasPlan& plan);

// Enqueues the product. After anything but success the contents of y are undefined.
cublasStatus_t enqueue_gemm(const GemmOperands& operands, const BlasPlan& plan,
                            const ExecContext& ctx);

}  // namespace sparsellm
