#include "tests/testing/compare.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "tests/testing/tensor_values.h"

namespace sparsellm::testing {
namespace {

// "[3, 17]" for an index in row-major order.
std::string index_string(const Tensor& x, int64_t index) {
  std::string text;
  for (int dimension = x.rank() - 1; dimension >= 0; --dimension) {
    text.insert(0, std::to_string(index % x.size(dimension)) + (text.empty() ? "" : ", "));
    index /= x.size(dimension);
  }
  return "[" + text + "]";
}

// The error in units of the tolerance; at most 1 passes.
double badness(double got, double expected, double tolerance) {
  if (got == expected || (std::isnan(got) && std::isnan(expected))) {
    return 0.0;
  }
  const double ratio = std::abs(got - expected) / tolerance;
  return std::isfinite(tolerance) && tolerance > 0.0 && ratio >= 0.0
             ? ratio
             : std::numeric_limits<double>::infinity();
}

// What the rounding of `value` to a dtype may change.
double rounding(DType dtype, double value) {
  switch (dtype) {
    case DType::f16:
      return std::max(std::abs(value) * 0x1p-11, 0x1p-25);
    case DType::bf16:
      return std::max(std::abs(value) * 0x1p-8, 0x1p-134);
    default:
      return std::max(std::abs(value) * 0x1p-24, 0x1p-150);
  }
}

}  // namespace

::testing::AssertionResult all_close(const Tensor& got, std::span<const double> expected,
                                     std::span<const double> tolerances) {
  const std::vector<double> values = values_of(got);
  if (expected.size() != values.size() || tolerances.size() != values.size()) {
    return ::testing::AssertionFailure()
           << expected.size() << " values and " << tolerances.size()
           << " tolerances are given for a tensor " << got.shape_string();
  }
  double worst_badness = 0.0;
  size_t worst = 0;
  size_t failures = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double b = badness(values[i], expected[i], tolerances[i]);
    failures += b > 1.0 ? 1 : 0;
    if (b > worst_badness) {
      worst_badness = b;
      worst = i;
    }
  }
  if (failures == 0) {
    return ::testing::AssertionSuccess() << "largest error: " << worst_badness << " tolerances";
  }
  return ::testing::AssertionFailure()
         << failures << " of " << values.size() << " elements differ; the worst is "
         << index_string(got, static_cast<int64_t>(worst)) << ": got "
         << fmt::format("{}, expected {}, tolerance {}", values[worst], expected[worst],
                        tolerances[worst]);
}

::testing::AssertionResult all_close(const Tensor& got, const Expected& expected, double factor) {
  std::vector<double> tolerances;
  tolerances.reserve(expected.values.size());
  for (size_t i = 0; i < expected.values.size(); ++i) {
    tolerances.push_back(factor * std::numeric_limits<float>::epsilon() *
                             expected.magnitudes.at(i) +
                         rounding(got.dtype(), expected.values[i]));
  }
  return all_close(got, expected.values, tolerances);
}

::testing::AssertionResult same_bits(const Tensor& got, const Tensor& expected) {
  if (got.shape_string() != expected.shape_string() || got.dtype() != expected.dtype()) {
    return ::testing::AssertionFailure()
           << "got " << name_of(got.dtype()) << " " << got.shape_string() << ", expected "
           << name_of(expected.dtype()) << " " << expected.shape_string();
  }
  const std::vector<std::byte> a = bytes_of(got);
  const std::vector<std::byte> b = bytes_of(expected);
  const int64_t size = size_of(got.dtype());
  for (int64_t row = 0; row < got.size(0); ++row) {
    for (int64_t i = 0; i < got.row_size(); ++i) {
      if (std::memcmp(a.data() + (row * got.row_stride() + i) * size,
                      b.data() + (row * expected.row_stride() + i) * size,
                      static_cast<size_t>(size)) != 0) {
        const int64_t index = row * got.row_size() + i;
        const auto at = static_cast<size_t>(index);
        return ::testing::AssertionFailure()
               << index_string(got, index) << " differs: "
               << fmt::format("got {}, expected {}", values_of(got)[at], values_of(expected)[at]);
      }
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace sparsellm::testing
