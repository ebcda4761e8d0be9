#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tools/bench/verify_product_device.h"

namespace sparsellm {
namespace {

std::vector<double> values_of_row(const Tensor& x, int64_t row) {
  std::vector<double> values(static_cast<size_t>(x.size(1)));
  visit_float(x.dtype(), [&]<class T>(T) {
    const T* const elements = x.row<T>(row);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<double>(to_float(elements[i]));
    }
  });
  return values;
}

double largest_magnitude(const std::vector<double>& values) {
  double largest = 0.0;
  for (const double v : values) {
    largest = std::max(largest, std::abs(v));
  }
  return largest;
}

double sum_of_magnitudes(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double v : values) {
    sum += std::abs(v);
  }
  return sum;
}

}  // namespace

void product_reference_cpu(const Tensor& x, const Tensor& w, const ProductSums& sums,
                           ExecContext& ctx) {
  std::vector<std::vector<double>> inputs;
  for (int64_t t = 0; t < x.size(0); ++t) {
    inputs.push_back(values_of_row(x, t));
    if (!sums.largest_inputs.empty()) {
      sums.largest_inputs.data<float>()[t] = static_cast<float>(largest_magnitude(inputs.back()));
    }
  }
  ctx.threads.parallel_for(w.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      const std::vector<double> weights = values_of_row(w, o);
      if (!sums.weight_sums.empty()) {
        sums.weight_sums.data<float>()[o] = static_cast<float>(sum_of_magnitudes(weights));
      }
      for (int64_t t = 0; t < x.size(0); ++t) {
        const std::vector<double>& input = inputs[static_cast<size_t>(t)];
        double sum = 0.0;
        double magnitude = 0.0;
        for (size_t i = 0; i < weights.size(); ++i) {
          const double product = weights[i] * input[i];
          sum += product;
          magnitude += std::abs(product);
        }
        sums.values.row<float>(t)[o] = static_cast<float>(sum);
        sums.magnitudes.row<float>(t)[o] = static_cast<float>(magnitude);
      }
    }
  });
}

double product_error_cpu(const Tensor& y, const ProductSums& sums, double input_rounding,
                         ExecContext&) {
  const Rounding rounding = rounding_of(y.dtype());
  double worst = 0.0;
  for (int64_t t = 0; t < y.size(0); ++t) {
    const std::vector<double> results = values_of_row(y, t);
    const float* const values = sums.values.row<float>(t);
    const float* const magnitudes = sums.magnitudes.row<float>(t);
    for (size_t o = 0; o < results.size(); ++o) {
      const float in_inputs = static_cast<float>(input_rounding) *
                              sums.weight_sums.data<float>()[o] *
                              sums.largest_inputs.data<float>()[t];
      const float in_sum = kSumTolerance * magnitudes[o] + in_inputs;
      const float tolerance =
          in_sum + rounding.relative * (std::abs(values[o]) + in_sum) + rounding.absolute;
      const double ratio =
          std::abs(results[o] - static_cast<double>(values[o])) / static_cast<double>(tolerance);
      // A comparison with NaN is false.
      worst = ratio <= std::numeric_limits<double>::max() ? std::max(worst, ratio)
                                                          : std::numeric_limits<double>::infinity();
    }
  }
  return worst;
}

}  // namespace sparsellm
