#pragma once

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "kernels/base/tensor.h"

namespace sparsellm::testing {

// The comparators of the project. A tensor may have any floating dtype and stride and lie on any
// device; expected values are given row after row. A NaN passes only where a NaN is expected, an
// infinity only where the same infinity is. A failure names the worst element.

// |got - expected| <= tolerance, element by element.
::testing::AssertionResult all_close(const Tensor& got, std::span<const double> expected,
                                     std::span<const double> tolerances);

// A result computed in double, and for each element the sum of the magnitudes of the terms that
// make it up (sum |w||x| of a dot product): what the rounding errors are in proportion to.
struct Expected {
  std::vector<double> values;
  std::vector<double> magnitudes;
};

// |got - value| <= factor * epsilon of f32 * magnitude + the rounding of the value to got's dtype.
::testing::AssertionResult all_close(const Tensor& got, const Expected& expected, double factor);

// The same shape, and the same bits in every element.
::testing::AssertionResult same_bits(const Tensor& got, const Tensor& expected);

}  // namespace sparsellm::testing
