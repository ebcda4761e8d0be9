#include "tools/bench/matrix_summary.h"

#include <algorithm>
#include <cmath>

namespace sparsellm {
namespace {

constexpr double kFaster = 1.2;
constexpr double kTwice = 2.0;

// In the order in which they come.
template <class T>
void add_once(std::vector<T>& values, const T& value) {
  if (std::ranges::find(values, value) == values.end()) {
    values.push_back(value);
  }
}

bool is_of(const MatrixResult& result, const MatrixSummary& summary) {
  return result.role == MatrixContenderKind::Role::measured &&
         result.contender == summary.contender && result.order == summary.order &&
         result.n == summary.n.value_or(result.n) &&
         (summary.matrix_class.empty() || result.matrix_class == summary.matrix_class);
}

MatrixSummary summarize(std::span<const MatrixResult> results, MatrixSummary summary) {
  double logarithms = 0.0;
  int64_t not_slower = 0;
  int64_t faster = 0;
  int64_t twice = 0;
  for (const MatrixResult& result : results) {
    if (!is_of(result, summary)) {
      continue;
    }
    summary.cells += 1;
    if (!result.verified || !(result.speedup > 0.0)) {
      summary.failed += 1;
      continue;
    }
    logarithms += std::log(result.speedup);
    not_slower += result.speedup >= 1.0 ? 1 : 0;
    faster += result.speedup >= kFaster ? 1 : 0;
    twice += result.speedup >= kTwice ? 1 : 0;
    if (summary.worst_matrix.empty() || result.speedup < summary.worst_speedup) {
      summary.worst_speedup = result.speedup;
      summary.worst_matrix = result.matrix;
    }
  }
  const auto share = [&](int64_t count) {
    return static_cast<double>(count) / static_cast<double>(std::max<int64_t>(summary.cells, 1));
  };
  summary.share_not_slower = share(not_slower);
  summary.share_faster = share(faster);
  summary.share_twice = share(twice);
  if (const int64_t compared = summary.cells - summary.failed; compared > 0) {
    summary.geometric_mean = std::exp(logarithms / static_cast<double>(compared));
  }
  return summary;
}

}  // namespace

std::vector<MatrixSummary> summarize_matrices(std::span<const MatrixResult> results) {
  std::vector<std::string> contenders;
  std::vector<general_sparse::Order> orders;
  std::vector<std::optional<int64_t>> columns;
  std::vector<std::string> classes;
  for (const MatrixResult& result : results) {
    if (result.role == MatrixContenderKind::Role::measured) {
      add_once(contenders, result.contender);
      add_once(orders, result.order);
      add_once(columns, std::optional(result.n));
      add_once(classes, result.matrix_class);
    }
  }
  if (columns.size() > 1) {
    columns.emplace_back();
  }
  if (classes.size() > 1) {
    classes.emplace_back();
  }
  std::vector<MatrixSummary> summaries;
  for (const std::string& contender : contenders) {
    for (const general_sparse::Order order : orders) {
      for (const std::optional<int64_t>& n : columns) {
        for (const std::string& matrix_class : classes) {
          summaries.push_back(summarize(
              results,
              {.contender = contender, .order = order, .n = n, .matrix_class = matrix_class}));
        }
      }
    }
  }
  std::erase_if(summaries, [](const MatrixSummary& summary) { return summary.cells == 0; });
  return summaries;
}

}  // namespace sparsellm
