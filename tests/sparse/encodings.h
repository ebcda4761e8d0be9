#pragma once

#include <gtest/gtest.h>

#include "kernels/base/tensor.h"
#include "sparse/encoded_weight.h"
#include "tests/testing/random.h"

namespace sparsellm::testing {

// The same fields, and the same parts byte by byte in the same order.
::testing::AssertionResult same_encoding(const EncodedWeight& got, const EncodedWeight& expected);

// The same shape and the same bits; for contiguous matrices, which may be large.
::testing::AssertionResult same_matrix(const Tensor& got, const Tensor& expected);

EncodedWeight copy_of(const EncodedWeight& e);

// A copy in which up to three bytes, and sizes and nonzeros of the header, may be others.
EncodedWeight damaged_copy_of(const EncodedWeight& e, Random& random);

}  // namespace sparsellm::testing
