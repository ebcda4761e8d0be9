#pragma once

#include <gtest/gtest.h>

#include "kernels/base/tensor.h"
#include "sparse/encoded_weight.h"

namespace sparsellm::testing {

// The same fields, and the same parts byte by byte in the same order.
::testing::AssertionResult same_encoding(const EncodedWeight& got, const EncodedWeight& expected);

// The same shape and the same bits; for contiguous matrices, which may be large.
::testing::AssertionResult same_matrix(const Tensor& got, const Tensor& expected);

EncodedWeight copy_of(const EncodedWeight& e);

}  // namespace sparsellm::testing
