#pragma once

#include <cstdint>
#include <filesystem>
#include <utility>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "tools/cli/report.h"

namespace sparsellm {

// Which products of single linear layers are tuned, with random weights.
struct TuneOptions {
  std::vector<std::pair<int64_t, int64_t>> shapes;  // out, in
  std::vector<int64_t> tokens;
  DType dtype = DType::f16;
  Device device;
  std::filesystem::path cache;  // where the choices are kept
  uint64_t seed = 0;
};

// Adds the table "tune", a row a shape and epilogue: choices measured, those that the cache had not
// yet, and seconds. Throws Error; on the CPU device there is nothing to tune.
void tune_shapes(const TuneOptions& options, ReportWriter& report);

// The columns of that table.
std::vector<Column> tune_columns();

}  // namespace sparsellm
