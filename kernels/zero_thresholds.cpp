#include "kernels/zero_thresholds.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <utility>

#include "kernels/counter_random.h"
#include "kernels/random_order.h"

namespace sparsellm {
namespace {

using Kind = ZeroPattern::Kind;
using Densities = std::vector<double>;  // by cell

constexpr double kCountRounding = 1e-6;  // of numbers of elements

double standard_normal(uint64_t seed, int64_t index) {  // Box and Muller's
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform(seed, 2 * index)));
  return radius * std::cos(2.0 * std::numbers::pi * uniform(seed, 2 * index + 1));
}

// The s for which the numbers min(1, s * weight) have the mean `density`: the largest weights are
// clipped, as many as it takes. Infinite if that is all of them.
double clipped_scale(std::vector<double> weights, double density) {
  std::sort(weights.begin(), weights.end());
  std::vector<double> sums(weights.size());  // of a weight and all smaller ones
  std::partial_sum(weights.begin(), weights.end(), sums.begin());
  double left = density * static_cast<double>(weights.size());
  for (size_t i = weights.size(); i-- > 0; left -= 1.0) {
    const double scale = left / sums[i];
    if (scale * weights[i] <= 1.0) {
      return scale;
    }
  }
  return std::numeric_limits<double>::infinity();
}

// Cells of one size.
Densities log_normal_densities(int64_t cells, double deviation, double density, uint64_t key) {
  Densities densities(static_cast<size_t>(cells));
  for (int64_t i = 0; i < cells; ++i) {
    densities[static_cast<size_t>(i)] = std::exp(deviation * standard_normal(key, i));
  }
  const double scale = clipped_scale(densities, density);
  for (double& of_cell : densities) {
    of_cell = std::min(scale * of_cell, 1.0);
  }
  return densities;
}

// Of rows of normal weights with a standard deviation each: the shares that are above the threshold
// at which their mean is `density`.
Densities above_threshold(int64_t rows, double deviation, double density, uint64_t key) {
  constexpr int kSteps = 100;  // of bisection: enough for all digits
  constexpr double kMostLog = 700.0;
  Densities densities(static_cast<size_t>(rows));
  std::vector<double> logs(densities.size());  // of standard deviations
  for (int64_t i = 0; i < rows; ++i) {
    logs[static_cast<size_t>(i)] = deviation * standard_normal(key, i);
  }
  double low = -kMostLog;  // logarithms of thresholds
  double high = kMostLog;
  for (int step = 0; step < kSteps; ++step) {
    const double middle = (low + high) / 2.0;
    double sum = 0.0;
    for (size_t i = 0; i < logs.size(); ++i) {
      densities[i] = std::erfc(std::exp(middle - logs[i]) / std::numbers::sqrt2);
      sum += densities[i];
    }
    (sum > density * static_cast<double>(rows) ? low : high) = middle;
  }
  return densities;
}

// `number` rounded up or down, so that the expected number is the same.
uint64_t whole_number(double number, uint64_t key, int64_t index) {
  const double below = std::floor(number + kCountRounding);
  const double above = number - below;
  const bool up = above > kCountRounding && uniform(mix_bits(~key), index) < above;
  return static_cast<uint64_t>(below) + (up ? 1 : 0);
}

Densities whole_blocks(int64_t cells, double density, uint64_t key) {
  const uint64_t kept = whole_number(density * static_cast<double>(cells), key, 0);
  const RandomOrder order = random_order(cells);
  Densities densities(static_cast<size_t>(cells));
  for (uint64_t cell = 0; cell < densities.size(); ++cell) {
    densities[cell] = place_in(order, key, cell) < kept ? 1.0 : 0.0;
  }
  return densities;
}

// `sizes`: the elements of each cell.
Densities partly_dense(const std::vector<int64_t>& sizes, double share, double density,
                       uint64_t key) {
  std::vector<std::pair<uint64_t, size_t>> order(sizes.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = {uniform_bits(key, static_cast<int64_t>(i)), i};
  }
  const auto dense_cells = std::llround(share * static_cast<double>(sizes.size()));
  std::partial_sort(order.begin(), order.begin() + dense_cells, order.end());
  double elements = 0.0;  // of cells that are not dense
  for (const int64_t size : sizes) {
    elements += static_cast<double>(size);
  }
  double nonzeros = density * elements;  // of these
  Densities densities(sizes.size(), -1.0);
  for (int64_t i = 0; i < dense_cells; ++i) {
    const size_t cell = order[static_cast<size_t>(i)].second;
    const auto size = static_cast<double>(sizes[cell]);
    if (size <= nonzeros + kCountRounding) {
      densities[cell] = 1.0;
      elements -= size;
      nonzeros -= size;
    }
  }
  const double rest = elements > 0.0 ? nonzeros / elements : 0.0;
  std::replace(densities.begin(), densities.end(), -1.0, rest);
  return densities;
}

ZeroGrid grid_of(const ZeroPattern& pattern, int64_t rows, int64_t columns) {
  const auto cells = [columns](int64_t cell_rows, int64_t cell_columns) -> ZeroGrid {
    return {.columns = columns,
            .cell_rows = cell_rows,
            .cell_columns = cell_columns,
            .cells_across = (columns + cell_columns - 1) / cell_columns};
  };
  switch (pattern.kind) {
    case Kind::rows:
    case Kind::magnitude:
      return cells(1, columns);
    case Kind::dense_blocks:
      return cells(ZeroPattern::kBlockRows, ZeroPattern::kBlockColumns);
    case Kind::kept_blocks:
      return cells(pattern.block.rows, pattern.block.columns);
    default:
      return cells(rows, 1);
  }
}

std::vector<int64_t> cell_sizes(const ZeroGrid& grid, int64_t rows) {
  std::vector<int64_t> sizes;
  for (int64_t row = 0; row < rows; row += grid.cell_rows) {
    for (int64_t column = 0; column < grid.columns; column += grid.cell_columns) {
      sizes.push_back(std::min(grid.cell_rows, rows - row) *
                      std::min(grid.cell_columns, grid.columns - column));
    }
  }
  return sizes;
}

Densities densities_of(const ZeroPattern& pattern, double density, uint64_t key,
                       const std::vector<int64_t>& sizes) {
  switch (pattern.kind) {
    case Kind::rows:
    case Kind::columns:
      return log_normal_densities(std::ssize(sizes), pattern.amount, density, key);
    case Kind::magnitude:
      return above_threshold(std::ssize(sizes), pattern.amount, density, key);
    case Kind::kept_blocks:
      return whole_blocks(std::ssize(sizes), density, key);
    default:
      return partly_dense(sizes, pattern.amount, density, key);
  }
}

}  // namespace

ZeroThresholds zero_thresholds(const ZeroPattern& pattern, double sparsity, uint64_t key,
                               int64_t rows, int64_t columns) {
  assert(pattern.kind != Kind::uniform && why_not(pattern, sparsity).empty());
  assert(rows > 0 && columns > 0);
  ZeroThresholds thresholds{
      .grid = grid_of(pattern, rows, columns), .counted = pattern.kind == Kind::rows, .zeros = {}};
  for (const double density :
       densities_of(pattern, 1.0 - sparsity, key, cell_sizes(thresholds.grid, rows))) {
    const double zeros = std::clamp(1.0 - density, 0.0, 1.0);
    thresholds.zeros.push_back(
        thresholds.counted
            ? whole_number(zeros * static_cast<double>(columns), key, std::ssize(thresholds.zeros))
            : static_cast<uint64_t>(std::llround(zeros * 0x1p32)));
  }
  return thresholds;
}

}  // namespace sparsellm
