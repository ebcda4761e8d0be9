#pragma once

#include <span>

#include "tools/bench/kernel.h"
#include "tools/cli/report.h"

namespace sparsellm {

// Adds the table "kernel": bench_kernels() with a row for each result, as it comes; and if there is
// a sparse format among them, the table "summary".
void report_kernels(const KernelBenchOptions& options, ReportWriter& report);

// The table "summary" alone.
void report_kernel_summary(std::span<const KernelResult> results, ReportWriter& report);

// The row of a result, and what its cells are.
std::vector<Column> kernel_columns();
Row kernel_row(const KernelResult& result);

}  // namespace sparsellm
