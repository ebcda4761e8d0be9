#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/exec.h"
#include "tools/bench/cold_cache.h"
#include "tools/bench/layer_source.h"
#include "tools/bench/turns.h"
#include "tools/cli/report.h"
#include "tools/cli/statistics.h"

namespace sparsellm {

struct LayerBenchOptions {
  std::vector<int64_t> tokens{1, 8, 16, 32};
  // Every block, or one of those that are alike (LayerSource::alike).
  enum class Blocks : uint8_t { alike, all };
  Blocks blocks = Blocks::alike;
  int64_t repeat = 20;
  int64_t rotation_bytes = kRotationBytes;
  Sums sums = Sums::fastest;
  uint64_t seed = 1;  // of the inputs
  // Called before each linear layer, with layers done and in all; what it throws ends the
  // benchmark.
  std::function<void(int64_t done, int64_t total)> progress;
};

// A linear layer of a block for some number of tokens, as the engine computes it, with overlapping
// launches, except for bias and activation.
struct LayerResult {
  int64_t block = 0;
  std::string name;   // "qkv", "attention_out", "gate_up" or "up", "down"
  int64_t count = 1;  // layers that it stands for
  int64_t out = 0;
  int64_t in = 0;
  double density = 0.0;  // share of nonzeros
  std::string pattern;   // of the zeros of random weights; else empty
  std::string format;
  int64_t bytes = 0;        // that a product reads
  int64_t dense_bytes = 0;  // of all elements
  int64_t tokens = 0;
  Spread us;  // 0 if it is not verified
  // The fastest of all that is dense for this shape, and its time by turns with this weight, with
  // its elements; 0: there is none.
  std::string baseline;
  double dense_us = 0.0;
  std::optional<Verdict> verdict;
  double library_us = 0.0;  // of the faster of cuBLAS and cuBLASLt for this shape; 0: there is none
  std::string algorithm;
  bool verified = false;  // against the weight's own elements (WeightMatrix::expand)
  std::string note;
};

// Loads one block after the other. What fails for want of memory is a result with a note. Throws
// Error.
std::vector<LayerResult> bench_layers(const LayerBenchOptions& options, const LayerSource& source,
                                      const std::function<void(const LayerResult&)>& on_result);

// All layers together, for some number of tokens.
struct LayerTotals {
  int64_t tokens = 0;
  std::string pattern;  // of the first
  int64_t layers = 0;
  int64_t failed = 0;  // of these: without figures, and so not in the times
  int64_t bytes = 0;
  int64_t dense_bytes = 0;
  double us = 0.0;
  double dense_us = 0.0;
  std::optional<double> library_us = 0.0;  // nothing if a layer has none
};
std::vector<LayerTotals> total_layers(const std::vector<LayerResult>& results);

// Adds the tables "layers" and "layer totals".
void report_layers(const LayerBenchOptions& options, const LayerSource& source,
                   ReportWriter& report);

std::vector<Column> layer_columns();
Row layer_row(const LayerResult& result);
void report_layer_totals(const std::vector<LayerResult>& results, ReportWriter& report);

}  // namespace sparsellm
