#include "tools/cli/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

std::vector<double> sorted(const std::vector<double>& values) {
  require(!values.empty(), "there are no values to make a statistic of");
  std::vector<double> ordered = values;
  std::sort(ordered.begin(), ordered.end());
  return ordered;
}

double quantile_of_sorted(const std::vector<double>& ordered, double p) {
  require(p >= 0.0 && p <= 1.0, "the quantile {} is not in [0, 1]", p);
  const double place = p * static_cast<double>(ordered.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, ordered.size() - 1);
  return std::lerp(ordered[below], ordered[above], place - static_cast<double>(below));
}

}  // namespace

Spread spread_of(const std::vector<double>& values) {
  const std::vector<double> ordered = sorted(values);
  return {
      .median = quantile_of_sorted(ordered, 0.5), .min = ordered.front(), .max = ordered.back()};
}

Spread scaled(const Spread& spread, double factor) {
  return {.median = spread.median * factor, .min = spread.min * factor, .max = spread.max * factor};
}

double median(const std::vector<double>& values) { return quantile(values, 0.5); }

double mean(const std::vector<double>& values) {
  require(!values.empty(), "there are no values to make a statistic of");
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double quantile(const std::vector<double>& values, double p) {
  return quantile_of_sorted(sorted(values), p);
}

}  // namespace sparsellm
