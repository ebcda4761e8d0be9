#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/bench/kernel.h"
#include "tools/cli/report.h"

namespace sparsellm {

// The kernel of a format for few tokens, whole or with a stage erased or replaced (Xia et al.,
// Flash-LLM, VLDB 2024, section 6; what Fan et al., SpInfer, EuroSys 2025, show in table 1 and
// figure 12).
struct AblationResult {
  int64_t out = 0;
  int64_t in = 0;
  int64_t tokens = 0;
  double sparsity = 0.0;
  ZeroPattern pattern;  // of the zeros
  std::string variant;  // "ours", "stream only", ...
  Spread us;            // with ordinary launches
  int64_t encoded_bytes = 0;
  double read_gb_per_s = 0.0;
  // Over the fastest of all that is dense with ordinary launches, and of cuBLAS and cuBLASLt, as
  // measured in the same run, not by turns; 0: there is none.
  double speedup = 0.0;
  double library_speedup = 0.0;
  double fraction_of_ours = 0.0;  // of the time; 0: there is none
  bool computes_product = false;  // as the others cannot: there is nothing to verify them by
  bool measured = false;  // and verified, if it computes the product; else all figures are 0
  std::string algorithm;
  std::string note;
};

// All variants for all shapes, patterns, sparsities and tokens of the options, which name one of
// ablation_formats(). `on_result` gets every result as soon as it is complete. Throws Error for
// options that make no sense, for what make_ablation_contender() refuses, and where there is not
// enough memory.
void bench_ablation(const KernelBenchOptions& options,
                    const std::function<void(const AblationResult&)>& on_result);

// Throws Error unless these are one of ablation_formats().
void check_ablation_formats(const std::vector<std::string>& formats);

// Adds the table "ablation".
void report_ablation(const KernelBenchOptions& options, ReportWriter& report);

std::vector<Column> ablation_columns(std::string_view format);
Row ablation_row(const AblationResult& result);

}  // namespace sparsellm
