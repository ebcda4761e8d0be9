#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>

#include "kernels/base/exec.h"
#include "sparse/general_sparse/general_matrix.h"
#include "sparse/matrices/compressed_rows.h"

namespace sparsellm::testing {

// The matrix with its values rounded to the dtype.
CompressedRows rounded(const CompressedRows& m, DType dtype);

// Numbers of columns of B: those of each kernel, and others.
inline constexpr int64_t kMatrixColumns[] = {1, 2, 3, 4, 7, 8, 12, 16, 24, 32, 33, 64, 65, 100};

// a.multiply(), where a is m, gives what double gives, in both orders, with so many columns of B,
// and writes nothing else.
void check_products(const general_sparse::Matrix& a, const CompressedRows& m,
                    std::span<const int64_t> columns, ExecContext& ctx);

}  // namespace sparsellm::testing
