#pragma once

#include <vector>

namespace sparsellm {

// What repeated measurements come to. The median, since single runs are disturbed in one direction
// only; all of them lie from min to max.
struct Spread {
  double median = 0.0;
  double min = 0.0;
  double max = 0.0;
};

// All that take values take at least one, in any order, and throw Error without.
Spread spread_of(const std::vector<double>& values);
Spread scaled(const Spread& spread, double factor);  // in another unit
inline constexpr double kMicroseconds = 1e6;         // of a second
double median(const std::vector<double>& values);
double mean(const std::vector<double>& values);

// The value that a share p in [0, 1] of the values is below; between two values that are neighbours
// in order by linear interpolation (numpy's default; Hyndman and Fan, Sample Quantiles in
// Statistical Packages, 1996, definition 7).
double quantile(const std::vector<double>& values, double p);

}  // namespace sparsellm
