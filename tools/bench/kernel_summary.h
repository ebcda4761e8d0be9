#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/exec.h"
#include "tools/bench/kernel.h"

namespace sparsellm {

// How a sparse format fares against what is dense over all shapes and token counts of a run.
struct KernelSummary {
  std::string format;
  std::optional<double> sparsity;  // none: of all
  ZeroPattern pattern;
  Launches launches = Launches::ordinary;
  int64_t cells = 0;   // results
  int64_t failed = 0;  // of these: without a verified figure, or without one to compare it with
  int64_t faster = 0;  // of these: than the fastest that is dense
  int64_t equal = 0;   // of these: within the spread of both
  double worst_speedup = 0.0;   // of those that are compared; 0 if there are none
  std::string worst_cell = {};  // "4096x4096, 8 tokens, sparsity 0.5"
};

// By format and pattern in the order in which they come, sparsity and launches, and over all
// sparsities if there are several.
std::vector<KernelSummary> summarize_kernels(std::span<const KernelResult> results);

}  // namespace sparsellm
