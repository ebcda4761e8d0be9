#include "tools/bench/kernel_report.h"

#include "tools/bench/kernel_summary.h"
#include "tools/cli/interrupt.h"

namespace sparsellm {
namespace {

std::vector<Column> summary_columns() {
  using Kind = Column::Kind;
  return {
      {.key = "format", .title = "format", .kind = Kind::text},
      {.key = "sparsity", .title = "sparsity", .kind = Kind::text},
      {.key = "pattern", .title = "pattern", .kind = Kind::text},
      {.key = "launches", .title = "launches", .kind = Kind::text},
      {.key = "cells", .title = "cells"},
      {.key = "failed", .title = "failed"},
      {.key = "faster", .title = "faster"},
      {.key = "equal", .title = "equal"},
      {.key = "percent_faster", .title = "share", .unit = "%", .decimals = 1},
      {.key = "worst_speedup", .title = "worst", .unit = "x", .decimals = 2},
      {.key = "worst_cell", .title = "worst cell", .kind = Kind::text},
  };
}

}  // namespace

std::vector<Column> kernel_columns() {
  using Kind = Column::Kind;
  return {
      {.key = "out", .title = "out"},
      {.key = "in", .title = "in"},
      {.key = "tokens", .title = "tokens"},
      {.key = "sparsity", .title = "sparsity", .decimals = 2},
      {.key = "pattern", .title = "pattern", .kind = Kind::text},
      {.key = "format", .title = "format", .kind = Kind::text},
      {.key = "time_us", .title = "time", .unit = "us", .kind = Kind::spread, .decimals = 1},
      {.key = "overlapped_us",
       .title = "overlapped",
       .unit = "us",
       .kind = Kind::spread,
       .decimals = 1},
      {.key = "baseline", .title = "best dense", .kind = Kind::text},
      {.key = "baseline_us", .title = "best dense time", .unit = "us", .decimals = 1},
      {.key = "speedup", .title = "speed-up", .unit = "x", .decimals = 2},
      {.key = "verdict", .title = "verdict", .kind = Kind::text},
      {.key = "library_us", .title = "library", .unit = "us", .decimals = 1},
      {.key = "library_speedup", .title = "over library", .unit = "x", .decimals = 2},
      {.key = "overlapped_baseline", .title = "best dense overlapped", .kind = Kind::text},
      {.key = "overlapped_baseline_us",
       .title = "best dense time overlapped",
       .unit = "us",
       .decimals = 1},
      {.key = "overlapped_speedup", .title = "overlapped speed-up", .unit = "x", .decimals = 2},
      {.key = "overlapped_verdict", .title = "overlapped verdict", .kind = Kind::text},
      {.key = "overlapped_library_speedup",
       .title = "overlapped over library",
       .unit = "x",
       .decimals = 2},
      {.key = "encoded_bytes", .title = "encoded", .unit = "bytes"},
      {.key = "percent_of_dense", .title = "of dense", .unit = "%", .decimals = 1},
      {.key = "read_gb_per_s", .title = "read", .unit = "GB/s"},
      {.key = "percent_of_ceiling", .title = "of ceiling", .unit = "%", .decimals = 1},
      {.key = "cycles_per_element", .title = "cycles", .unit = "per element", .decimals = 3},
      {.key = "tflops", .title = "rate", .unit = "TFLOP/s", .decimals = 1},
      {.key = "worst_error", .title = "error", .unit = "of tolerance", .decimals = 2},
      {.key = "algorithm", .title = "algorithm", .kind = Kind::text},
      {.key = "note", .title = "note", .kind = Kind::text},
  };
}

Row kernel_row(const KernelResult& result) {
  Row row{result.out,   result.in, result.tokens, result.sparsity, to_string(result.pattern),
          result.format};
  const auto add = [&](std::initializer_list<Cell> cells) { row.insert(row.end(), cells); };
  if (result.has_times()) {
    const KernelComparison& plain = result.compared;
    const KernelComparison& overlapped = result.overlapped_compared;
    add({result.us, result.overlapped_us ? Cell(*result.overlapped_us) : Cell()});
    add({plain.baseline, known_cell(plain.baseline_us), known_cell(plain.speedup),
         verdict_cell(plain.verdict)});
    add({known_cell(result.library_us), known_cell(plain.library_speedup)});
    add({overlapped.baseline, known_cell(overlapped.baseline_us), known_cell(overlapped.speedup),
         verdict_cell(overlapped.verdict), known_cell(overlapped.library_speedup)});
    add({result.encoded_bytes, 100.0 * result.fraction_of_dense, result.read_gb_per_s,
         100.0 * result.fraction_of_read_ceiling, known_cell(result.cycles_per_element),
         result.computed ? Cell() : Cell(result.tflops)});
  } else {
    row.resize(row.size() + 19);
  }
  // An error of 0 is a finding only where there was a result.
  add({result.verified ? Cell(result.worst_error) : known_cell(result.worst_error),
       result.algorithm, result.has_times() ? result.note : "NOT VERIFIED: " + result.note});
  return row;
}

void report_kernel_summary(std::span<const KernelResult> results, ReportWriter& report) {
  report.begin_table("summary", summary_columns());
  for (const KernelSummary& s : summarize_kernels(results)) {
    report.add_row(
        {s.format, s.sparsity ? fmt::format("{}", *s.sparsity) : "all", to_string(s.pattern),
         s.launches == Launches::ordinary ? "ordinary" : "overlapped", s.cells, s.failed, s.faster,
         s.equal, 100.0 * static_cast<double>(s.faster) / static_cast<double>(s.cells),
         known_cell(s.worst_speedup), s.worst_cell});
  }
}

void report_kernels(const KernelBenchOptions& options, ReportWriter& report) {
  report.begin_table("kernel", kernel_columns());
  const std::vector<KernelResult> results = bench_kernels(options, [&](const KernelResult& result) {
    throw_if_interrupted();
    report.add_row(kernel_row(result));
  });
  report_kernel_summary(results, report);
}

}  // namespace sparsellm
