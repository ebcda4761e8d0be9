#pragma once

#include <memory>

#include "tools/bench/contender.h"

namespace sparsellm {

// NVIDIA's libraries as they are called for y^T [out, tokens] = W x^T, column-major, with operands
// in f16 or bf16 and sums in f32, partial sums included: what the engine's kernels have to do as
// well. All throw Error.

// cublasGemmEx with the library's own choice among its tensor-core kernels.
std::unique_ptr<Contender> make_cublas_contender(const ContenderInput& input);

// cublasLtMatmul with the fastest of blas_candidates() (kernels/gemm_candidates.cuh), which are
// tried once for a shape and a number of tokens: the choice is kept in the tune cache.
std::unique_ptr<Contender> make_cublaslt_contender(const ContenderInput& input);

// Both with partial sums in the dtype of y allowed, as PyTorch has them by default
// (torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction, and the same for bf16). What
// is right by the rounding of such sums may be wrong by the tolerance of all others.
std::unique_ptr<Contender> make_reduced_cublas_contender(const ContenderInput& input);

// cublasLtMatmul with both operands in e4m3, sums in f32 and without
// CUBLASLT_MATMUL_DESC_FAST_ACCUM, chosen as make_cublaslt_contender() chooses. The weight and x
// are rounded to multiples of a scale by the caller (tools/bench/fp8_rounding.h), and are what is
// then multiplied; encoding x is not part of the product. Throws Error for GPUs below compute
// capability 8.9; bind() throws Error where cuBLASLt has no algorithm, as for sizes that are no
// multiples of 16.
std::unique_ptr<Contender> make_fp8_contender(const ContenderInput& input);

// cusparseSpMM on the weight in compressed rows (CSR) with 32-bit indices, in each of its
// algorithms for them, preprocessed.
std::unique_ptr<Contender> make_cusparse_contender(const ContenderInput& input);

}  // namespace sparsellm
