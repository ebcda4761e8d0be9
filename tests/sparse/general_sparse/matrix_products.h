#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>

#include "kernels/base/exec.h"
#include "sparse/general_sparse/general_matrix.h"
#include "sparse/matrices/compressed_rows.h"

namespace sparsellm::testing {

// Numbers of columns of B: those of each kernel, and others.
inline constexpr int64_t kMatrixColumns[] = {1, 2, 3, 4, 7, 8, 12, 16, 24, 32, 33, 64, 65, 100};

// Checks a.multiply(), where a was loaded from m, against products in double: in both orders, for
// each of these numbers of columns of B, and that nothing else is written.
void check_products(const general_sparse::Matrix& a, const CompressedRows& m,
                    std::span<const int64_t> columns, ExecContext& ctx);

}  // namespace sparsellm::testing
