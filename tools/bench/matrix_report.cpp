#include "tools/bench/matrix_report.h"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "tools/bench/matrix_summary.h"
#include "tools/cli/interrupt.h"

namespace sparsellm {
namespace {

constexpr size_t kMatrixTimeCells = 10;  // those of a result that is verified

std::vector<Column> matrix_summary_columns() {
  using Kind = Column::Kind;
  return {
      {.key = "contender", .title = "contender", .kind = Kind::text},
      {.key = "order", .title = "order", .kind = Kind::text},
      {.key = "n", .title = "N", .kind = Kind::text},
      {.key = "class", .title = "class", .kind = Kind::text},
      {.key = "cells", .title = "cells"},
      {.key = "failed", .title = "failed"},
      {.key = "geometric_mean", .title = "geometric mean", .unit = "x", .decimals = 2},
      {.key = "percent_not_slower", .title = ">= 1", .unit = "%", .decimals = 1},
      {.key = "percent_faster", .title = ">= 1.2", .unit = "%", .decimals = 1},
      {.key = "percent_twice", .title = ">= 2", .unit = "%", .decimals = 1},
      {.key = "worst_speedup", .title = "worst", .unit = "x", .decimals = 2},
      {.key = "worst_matrix", .title = "worst matrix", .kind = Kind::text},
  };
}

}  // namespace

std::vector<Column> matrix_columns() {
  using Kind = Column::Kind;
  return {
      {.key = "matrix", .title = "matrix", .kind = Kind::text},
      {.key = "class", .title = "class", .kind = Kind::text},
      {.key = "rows", .title = "rows"},
      {.key = "columns", .title = "columns"},
      {.key = "nonzeros", .title = "nonzeros"},
      {.key = "mean_row", .title = "mean row", .decimals = 1},
      {.key = "longest_row", .title = "longest row"},
      {.key = "n", .title = "N"},
      {.key = "order", .title = "order", .kind = Kind::text},
      {.key = "contender", .title = "contender", .kind = Kind::text},
      {.key = "time_us", .title = "time", .unit = "us", .kind = Kind::spread, .decimals = 1},
      {.key = "gflops", .title = "rate", .unit = "GFLOP/s", .decimals = 1},
      {.key = "gb_per_s", .title = "traffic", .unit = "GB/s", .decimals = 1},
      {.key = "matrix_bytes", .title = "matrix", .unit = "bytes"},
      {.key = "baseline", .title = "best library", .kind = Kind::text},
      {.key = "baseline_us", .title = "best library time", .unit = "us", .decimals = 1},
      {.key = "speedup", .title = "speed-up", .unit = "x", .decimals = 2},
      {.key = "verdict", .title = "verdict", .kind = Kind::text},
      {.key = "dense_us", .title = "dense", .unit = "us", .decimals = 1},
      {.key = "dense_speedup", .title = "over dense", .unit = "x", .decimals = 2},
      {.key = "worst_error", .title = "error", .unit = "of tolerance", .decimals = 2},
      {.key = "verified", .title = "verified", .kind = Kind::text},
      {.key = "algorithm", .title = "algorithm", .kind = Kind::text},
      {.key = "note", .title = "note", .kind = Kind::text},
  };
}

Row matrix_row(const MatrixResult& result) {
  Row row{result.matrix,
          result.matrix_class,
          result.rows,
          result.columns,
          result.nonzeros,
          result.mean_row,
          result.longest_row,
          result.n,
          std::string(name_of(result.order)),
          result.contender};
  const auto add = [&](std::initializer_list<Cell> cells) { row.insert(row.end(), cells); };
  if (result.verified) {
    add({result.us, result.gflops, result.gb_per_s, result.bytes, result.baseline,
         known_cell(result.baseline_us), known_cell(result.speedup), verdict_cell(result.verdict),
         known_cell(result.dense_us), known_cell(result.dense_speedup)});
  } else {
    row.resize(row.size() + kMatrixTimeCells);
  }
  // An error of 0 is a finding only where there was a result.
  add({result.verified ? Cell(result.worst_error) : known_cell(result.worst_error),
       std::string(result.verified ? "yes" : "NO"), result.algorithm, result.note});
  return row;
}

std::string_view matrix_verdict_rule() {
  return "by turns with the best of cuSPARSE; equal: the medians differ by no more than the larger "
         "interquartile range";
}

void report_matrix_summary(std::span<const MatrixResult> results, ReportWriter& report) {
  report.begin_table("summary", matrix_summary_columns());
  for (const MatrixSummary& s : summarize_matrices(results)) {
    report.add_row(
        {s.contender, std::string(name_of(s.order)), s.n ? fmt::format("{}", *s.n) : "all",
         s.matrix_class.empty() ? "all" : s.matrix_class, s.cells, s.failed,
         known_cell(s.geometric_mean), 100.0 * s.share_not_slower, 100.0 * s.share_faster,
         100.0 * s.share_twice, known_cell(s.worst_speedup), s.worst_matrix});
  }
}

void report_matrices(const MatrixBenchOptions& options, ReportWriter& report) {
  report.begin_table("matrices", matrix_columns());
  const std::vector<MatrixContenderKind> contenders =
      matrix_contenders(options.device, options.search);
  const std::vector<MatrixResult> results =
      bench_matrices(options, contenders, [&](const MatrixResult& result) {
        throw_if_interrupted();
        report.add_row(matrix_row(result));
      });
  if (std::ranges::any_of(contenders, [](const MatrixContenderKind& kind) {
        return kind.role == MatrixContenderKind::Role::sparse;
      })) {
    report_matrix_summary(results, report);
  }
}

}  // namespace sparsellm
