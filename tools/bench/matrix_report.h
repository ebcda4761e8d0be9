#pragma once

#include <span>
#include <vector>

#include "tools/bench/matrix_bench.h"
#include "tools/cli/report.h"

namespace sparsellm {

// Adds the table "matrices": bench_matrices() of matrix_contenders() with a row for each result, as
// it comes; and if there is a sparse library among them, the table "summary".
void report_matrices(const MatrixBenchOptions& options, ReportWriter& report);

// The table "summary" alone.
void report_matrix_summary(std::span<const MatrixResult> results, ReportWriter& report);

// The row of a result, and what its cells are.
std::vector<Column> matrix_columns();
Row matrix_row(const MatrixResult& result);

// What a verdict is, in one line for the head of a report.
std::string_view matrix_verdict_rule();

}  // namespace sparsellm
