#pragma once

#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"
#include "sparse/matrices/compressed_rows.h"
#include "tests/testing/compare.h"

namespace sparsellm::testing {

// x * m^T in double, [tokens, rows of m], a chain of sums for each element in the order of columns;
// x [tokens, columns of m] of any dtype. Magnitudes as product()'s are.
Expected compressed_product(const Tensor& x, const CompressedRows& m, ThreadPool& threads);

}  // namespace sparsellm::testing
