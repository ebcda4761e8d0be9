#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/base/kernel_cache.h"
#include "sparse/general_sparse/general_matrix.h"
#include "sparse/general_sparse/search/cost_model.h"
#include "tools/bench/matrix_source.h"
#include "tools/cli/report.h"

namespace sparsellm {

// The cost model of general_sparse (Wang et al., GeneralSparse, ATC 2025): how good it is, and one
// that is fitted to measurements.
struct CostModelOptions {
  std::vector<MatrixSource> matrices = {};
  std::vector<int64_t> columns{1, 8, 32, 64};  // of B
  std::vector<general_sparse::Order> orders{general_sparse::Order::rows};
  std::vector<DType> dtypes{DType::f32};
  // For each product: the best of the model, and as many more of the search space at random. All of
  // the space if it has no more.
  int64_t best_plans = 40;
  int64_t random_plans = 0;
  std::filesystem::path model = {};  // in place of the one that is compiled in
  std::vector<std::string> samples =
      {};                            // tables "plans" of earlier runs, in place of measurements
  std::filesystem::path write = {};  // a model that is fitted to all samples
  Device device = {};
  KernelCache::Options kernels = {};
  uint64_t seed = 1;
};

// Adds the tables "plans", a row for each plan that is measured, and "search", a row for each
// product; with a file to write, "fit". Throws Error for options that make no sense.
void report_cost_model(const CostModelOptions& options, ReportWriter& report);

}  // namespace sparsellm
