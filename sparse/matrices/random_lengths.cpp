#include "sparse/matrices/random_lengths.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/counter_random.h"
#include "sparse/matrices/distinct_columns.h"

namespace sparsellm {
namespace {

// e^x for |x| up to about 50, by its series for x / 1024: only sums and products, which are the
// same on every machine.
double portable_exp(double x) {
  constexpr int kSquarings = 10;
  const double small = x / (1 << kSquarings);
  double result =
      1.0 + small * (1.0 + small / 2 * (1.0 + small / 3 * (1.0 + small / 4 * (1.0 + small / 5))));
  for (int i = 0; i < kSquarings; ++i) {
    result *= result;
  }
  return result;
}

// Nearly normal, between -6 and 6: the sum of twelve uniform numbers.
double portable_normal(uint64_t key, int64_t index) {
  constexpr int kTerms = 12;
  double sum = -0.5 * kTerms;
  for (int i = 0; i < kTerms; ++i) {
    sum += uniform(key, kTerms * index + i);
  }
  return sum;
}

}  // namespace

std::vector<int64_t> even_lengths(int64_t rows, int64_t total) {
  std::vector<int64_t> lengths(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) {
    const auto up_to = [&](int64_t n) { return n * (total % rows) / rows; };
    lengths[static_cast<size_t>(row)] = total / rows + up_to(row + 1) - up_to(row);
  }
  return lengths;
}

std::vector<int64_t> drawn_lengths(int64_t rows, int64_t total, int64_t longest, uint64_t key) {
  std::vector<int64_t> lengths(static_cast<size_t>(rows));
  for (int64_t i = 0; i < total; ++i) {
    ++lengths[static_cast<size_t>(any_column(key, i, rows))];
  }
  for (int64_t& length : lengths) {
    length = std::min(length, longest);
  }
  return lengths;
}

std::vector<int64_t> weighted_lengths(const std::vector<double>& weights, int64_t total,
                                      int64_t longest, uint64_t key) {
  constexpr int kMostSteps = 100;
  constexpr double kClose = 1e-3;
  const auto most = static_cast<double>(longest);
  const auto wanted = static_cast<double>(total);
  double scale = wanted / std::accumulate(weights.begin(), weights.end(), 0.0);
  for (int step = 0; step < kMostSteps; ++step) {
    double sum = 0.0;
    for (const double weight : weights) {
      sum += std::min(scale * weight, most);
    }
    if (sum >= (1.0 - kClose) * wanted) {
      break;
    }
    scale *= wanted / sum;  // what is cut off from long rows goes to the others
  }
  std::vector<int64_t> lengths(weights.size());
  for (size_t row = 0; row < weights.size(); ++row) {
    const double length = std::min(scale * weights[row], most);
    const double below = std::floor(length);
    const bool up = uniform(key, static_cast<int64_t>(row)) < length - below;
    lengths[row] = static_cast<int64_t>(below) + (up ? 1 : 0);
  }
  return lengths;
}

std::vector<double> log_normal_weights(int64_t rows, double deviation, uint64_t key) {
  std::vector<double> weights(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) {
    weights[static_cast<size_t>(row)] = portable_exp(deviation * portable_normal(key, row));
  }
  return weights;
}

}  // namespace sparsellm
