#include "tools/bench/kernel_summary.h"

#include <algorithm>
#include <set>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

const KernelComparison& comparison_of(const KernelResult& result, Launches launches) {
  return launches == Launches::ordinary ? result.compared : result.overlapped_compared;
}

template <class T>
void add_new(std::vector<T>& values, const T& value) {
  if (std::find(values.begin(), values.end(), value) == values.end()) {
    values.push_back(value);
  }
}

KernelSummary summarize(std::span<const KernelResult> results, KernelSummary summary) {
  for (const KernelResult& result : results) {
    if (result.format != summary.format || result.pattern != summary.pattern ||
        result.sparsity != summary.sparsity.value_or(result.sparsity)) {
      continue;
    }
    summary.cells += 1;
    const KernelComparison& compared = comparison_of(result, summary.launches);
    if (!compared.verdict) {
      summary.failed += 1;
      continue;
    }
    summary.faster += *compared.verdict == Verdict::faster ? 1 : 0;
    summary.equal += *compared.verdict == Verdict::equal ? 1 : 0;
    if (summary.worst_cell.empty() || compared.speedup < summary.worst_speedup) {
      summary.worst_speedup = compared.speedup;
      summary.worst_cell = fmt::format("{}x{}, {} tokens, sparsity {}", result.out, result.in,
                                       result.tokens, result.sparsity);
    }
  }
  return summary;
}

}  // namespace

std::vector<KernelSummary> summarize_kernels(std::span<const KernelResult> results) {
  std::vector<std::string> formats;
  std::vector<ZeroPattern> patterns;
  std::set<double> sparsities;
  std::set<std::string> overlapping;
  for (const KernelResult& result : results) {
    if (result.is_dense()) {
      continue;
    }
    add_new(formats, result.format);
    add_new(patterns, result.pattern);
    sparsities.insert(result.sparsity);
    if (result.overlapped_us) {
      overlapping.insert(result.format);
    }
  }
  std::vector<std::optional<double>> rows(sparsities.begin(), sparsities.end());
  if (rows.size() > 1) {
    rows.emplace_back();
  }
  std::vector<KernelSummary> summaries;
  for (const std::string& format : formats) {
    for (const ZeroPattern& pattern : patterns) {
      for (const std::optional<double>& sparsity : rows) {
        for (const Launches launches : {Launches::ordinary, Launches::overlapping}) {
          if (launches == Launches::ordinary || overlapping.contains(format)) {
            summaries.push_back(summarize(results, {.format = format,
                                                    .sparsity = sparsity,
                                                    .pattern = pattern,
                                                    .launches = launches}));
          }
        }
      }
    }
  }
  std::erase_if(summaries, [](const KernelSummary& summary) { return summary.cells == 0; });
  return summaries;
}

}  // namespace sparsellm
