#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/open_directory.h"
#include "sparse/general_sparse/device/kernel_plan.h"
#include "sparse/general_sparse/general_matrix.h"

namespace sparsellm {

// The time of a plan, as in the table "plans" of a report.
struct CostSample {
  std::string matrix = {};
  DType dtype = DType::f32;
  int64_t n = 0;
  general_sparse::Order order = general_sparse::Order::rows;
  general_sparse::KernelPlan plan = {};
  double seconds = 0.0;
};

struct CostSamples {
  std::string gpu = {};  // that was measured
  std::vector<CostSample> samples = {};
};

// Those of a report in jsonl: its environment names the GPU. Throws Error naming file and line.
CostSamples read_cost_samples(const InputFile& file);

}  // namespace sparsellm
