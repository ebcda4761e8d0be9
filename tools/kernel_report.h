#pragma once

#include "tools/bench_kernel.h"
#include "tools/report.h"

namespace sparsellm {

// Adds the table "kernel": bench_kernels() with a row for each result, as it comes.
void report_kernels(const KernelBenchOptions& options, ReportWriter& report);

}  // namespace sparsellm
