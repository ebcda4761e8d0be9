#pragma once

#include <gtest/gtest.h>

#include "kernels/base/exec.h"
#include "sparse/general_sparse/general_matrix.h"
#include "sparse/matrices/compressed_rows.h"

namespace sparsellm::testing {

// The matrix with its values rounded to the dtype.
CompressedRows rounded(const CompressedRows& m, DType dtype);

// a.multiply(), where a is m, gives what double gives, in both orders, with 1, 2, 3, ..., up to a
// hundred columns of B, and writes nothing else.
void check_products(const general_sparse::Matrix& a, const CompressedRows& m, ExecContext& ctx);

}  // namespace sparsellm::testing
