#include "tools/bench/turns.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace sparsellm {
namespace {

double interquartile_range(const std::vector<double>& values) {
  return quantile(values, 0.75) - quantile(values, 0.25);
}

}  // namespace

std::string_view name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::slower:
      return "slower";
    case Verdict::equal:
      return "equal";
    case Verdict::faster:
      return "faster";
  }
  return "?";
}

Turns compare_turns(const std::vector<double>& times, const std::vector<double>& baseline) {
  Turns turns{.time = spread_of(times), .baseline = spread_of(baseline)};
  const double gain = turns.baseline.median - turns.time.median;
  const double spread = std::max(interquartile_range(times), interquartile_range(baseline));
  if (std::abs(gain) > spread) {
    turns.verdict = gain > 0.0 ? Verdict::faster : Verdict::slower;
  }
  return turns;
}

std::string_view verdict_rule() {
  return "by turns with the best dense; equal: the medians differ by no more than the larger "
         "interquartile range";
}

Turns scaled(const Turns& turns, double factor) {
  return {.time = scaled(turns.time, factor),
          .baseline = scaled(turns.baseline, factor),
          .verdict = turns.verdict};
}

Cell verdict_cell(const std::optional<Verdict>& verdict) {
  return verdict ? Cell(std::string(name_of(*verdict))) : Cell();
}

}  // namespace sparsellm
