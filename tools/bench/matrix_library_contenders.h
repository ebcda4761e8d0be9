#pragma once

#include <memory>

#include "tools/bench/matrix_contender.h"

namespace sparsellm {

// NVIDIA's libraries for products of sparse matrices, on CUDA, with sums in f32. Both throw Error.

// cusparseSpMM in compressed rows (CSR_ALG1 to 3), in coordinates (COO_ALG1 to 4), and, where A has
// blocks, in block compressed rows (BSR_ALG1); with one column of B cusparseSpMV too (CSR_ALG1 and
// 2, COO_ALG1 and 2). Indices have 32 bits. What an algorithm prepares (cusparseSpMM_preprocess,
// cusparseSpMV_preprocess) is prepared before it is timed.
std::unique_ptr<MatrixContender> make_cusparse_matrix_contender(const MatrixInput& input);

// A as a dense matrix: cublasGemmEx, and cublasLtMatmul with its heuristics' proposals. f32 is
// multiplied as such, never in TF32. nullptr for a matrix of more than kMaxDenseMatrixBytes.
std::unique_ptr<MatrixContender> make_dense_matrix_contender(const MatrixInput& input);
inline constexpr int64_t kMaxDenseMatrixBytes = int64_t{4} << 30;

}  // namespace sparsellm
