#include "tools/kernel_report.h"

#include "tools/interrupt.h"

namespace sparsellm {
namespace {

std::vector<Column> kernel_columns() {
  using Kind = Column::Kind;
  return {
      {.key = "out", .title = "out"},
      {.key = "in", .title = "in"},
      {.key = "tokens", .title = "tokens"},
      {.key = "sparsity", .title = "sparsity", .decimals = 2},
      {.key = "format", .title = "format", .kind = Kind::text},
      {.key = "time_us", .title = "time", .unit = "us", .kind = Kind::spread, .decimals = 1},
      {.key = "encoded_bytes", .title = "encoded", .unit = "bytes"},
      {.key = "read_gb_per_s", .title = "read", .unit = "GB/s"},
      {.key = "percent_of_ceiling", .title = "of ceiling", .unit = "%", .decimals = 1},
      {.key = "tflops", .title = "rate", .unit = "TFLOP/s", .decimals = 1},
      {.key = "speedup", .title = "speed-up", .unit = "x", .decimals = 2},
      {.key = "worst_error", .title = "error", .unit = "of tolerance", .decimals = 2},
      {.key = "algorithm", .title = "algorithm", .kind = Kind::text},
      {.key = "note", .title = "note", .kind = Kind::text},
  };
}

Row kernel_row(const KernelResult& result) {
  Row row{result.out, result.in, result.tokens, result.sparsity, result.format};
  if (result.verified) {
    row.insert(row.end(),
               {Spread{.median = result.median_us, .min = result.min_us, .max = result.max_us},
                result.encoded_bytes, result.read_gb_per_s, 100.0 * result.fraction_of_read_ceiling,
                result.tflops});
    row.emplace_back();
    if (result.speedup > 0.0) {
      row.back() = result.speedup;
    }
  } else {
    row.resize(row.size() + 6);
  }
  row.insert(row.end(), {result.worst_error, result.algorithm,
                         result.verified ? result.note : "NOT VERIFIED: " + result.note});
  return row;
}

}  // namespace

void report_kernels(const KernelBenchOptions& options, ReportWriter& report) {
  report.begin_table("kernel", kernel_columns());
  bench_kernels(options, [&](const KernelResult& result) {
    throw_if_interrupted();
    report.add_row(kernel_row(result));
  });
}

}  // namespace sparsellm
