#pragma once

#include <cstdint>

#include "kernels/base/buffer.h"
#include "kernels/base/parallel.h"
#include "sparse/general_sparse/general_matrix.h"

namespace sparsellm {

// The dtype of B and C of a matrix of this dtype: the same on CUDA, f32 on the CPU.
DType dense_operand_dtype(DType dtype, Device device);

// Random B [rows, columns] in host memory, between -1 and 1.
OwnedTensor random_dense(int64_t rows, int64_t columns, DType dtype, uint64_t seed,
                         ThreadPool& threads);

// The first n columns of b [K, columns], which is in host memory, on a device: [K, n], or
// [n, K] in the order of columns.
OwnedTensor first_columns(const Tensor& b, int64_t n, general_sparse::Order order, Device device,
                          ThreadPool& threads);

// C [M, n], or [n, M]; uninitialised.
OwnedTensor allocate_product(int64_t rows, int64_t n, general_sparse::Order order, DType dtype,
                             Device device);

}  // namespace sparsellm
