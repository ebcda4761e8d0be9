#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/base/error.h"

namespace sparsellm {

// A figure measured on a sample, and its standard error.
struct Estimate {
  double value = 0.0;
  double standard_error = 0.0;
};

// The mean of numbers that come one by one (Welford, Note on a Method for Calculating Corrected
// Sums of Squares and Products, 1962).
class SampleMean {
 public:
  void add(double x) {
    count_ += 1;
    const double deviation = x - mean_;
    mean_ += deviation / static_cast<double>(count_);
    squares_ += deviation * (x - mean_);
  }

  int64_t count() const { return count_; }

  // Throws Error for fewer than two numbers, which have no spread.
  Estimate mean() const {
    require(count_ >= 2, "a standard error needs at least 2 scored tokens; there is {}", count_);
    const auto count = static_cast<double>(count_);
    return {.value = mean_, .standard_error = std::sqrt(squares_ / count / (count - 1.0))};
  }

  // e^mean; the standard error to first order.
  Estimate exp_of_mean() const {
    const Estimate exponent = mean();
    const double value = std::exp(exponent.value);
    return {.value = value, .standard_error = value * exponent.standard_error};
  }

 private:
  int64_t count_ = 0;
  double mean_ = 0.0;
  double squares_ = 0.0;  // sum of the squared deviations from the mean
};

}  // namespace sparsellm
