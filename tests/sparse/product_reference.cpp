#include "tests/sparse/product_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/testing/tensor_values.h"

namespace sparsellm::testing {
namespace {

// [tokens, in] -> [in, tokens]
std::vector<double> transposed(std::span<const double> x, size_t tokens) {
  const size_t in = x.size() / tokens;
  std::vector<double> result(x.size());
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t i = 0; i < in; ++i) {
      result[i * tokens + t] = x[t * in + i];
    }
  }
  return result;
}

}  // namespace

Expected product(const Tensor& x, const Tensor& w, ThreadPool& threads) {
  const auto tokens = static_cast<size_t>(x.size(0));
  const auto out = static_cast<size_t>(w.size(0));
  const std::vector<double> columns = transposed(values_of(x), tokens);
  Expected result{.values = std::vector<double>(tokens * out),
                  .magnitudes = std::vector<double>(tokens * out)};
  const auto rows = [&]<class T>(T, int64_t begin, int64_t end) {
    std::vector<double> sums(tokens);
    std::vector<double> magnitudes(tokens);
    for (int64_t row = begin; row < end; ++row) {
      std::ranges::fill(sums, 0.0);
      std::ranges::fill(magnitudes, 0.0);
      const T* const weights = w.row<T>(row);
      for (int64_t i = 0; i < w.size(1); ++i) {
        const double weight = to_float(weights[i]);
        if (weight == 0.0) {
          continue;
        }
        const double* const xs = columns.data() + static_cast<size_t>(i) * tokens;
        for (size_t t = 0; t < tokens; ++t) {
          const double term = weight * xs[t];
          sums[t] += term;
          magnitudes[t] += std::abs(term) + double{std::numeric_limits<float>::min()};
        }
      }
      for (size_t t = 0; t < tokens; ++t) {
        result.values[t * out + static_cast<size_t>(row)] = sums[t];
        result.magnitudes[t * out + static_cast<size_t>(row)] = magnitudes[t];
      }
    }
  };
  visit_float(w.dtype(), [&]<class T>(T element) {
    threads.parallel_for(w.size(0), 16,
                         [&](int64_t begin, int64_t end) { rows(element, begin, end); });
  });
  return result;
}

Expected first_rows(const Expected& all, int64_t rows, int64_t out) {
  const int64_t count = rows * out;
  return {.values = {all.values.begin(), all.values.begin() + count},
          .magnitudes = {all.magnitudes.begin(), all.magnitudes.begin() + count}};
}

Expected with_epilogue(Expected product, std::span<const double> bias,
                       Activation::Kind activation) {
  for (size_t i = 0; i < product.values.size(); ++i) {
    double& value = product.values[i];
    if (!bias.empty()) {
      value += bias[i % bias.size()];
      product.magnitudes[i] += std::abs(bias[i % bias.size()]);
    }
    if (activation == Activation::Kind::relu && value < 0.0) {
      value = 0.0;
    }
  }
  return product;
}

}  // namespace sparsellm::testing
