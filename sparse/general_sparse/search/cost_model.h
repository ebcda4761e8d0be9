#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/json_reader.h"
#include "kernels/base/open_directory.h"
#include "sparse/general_sparse/search/plan_features.h"

namespace sparsellm::general_sparse {

// The access classes of the model: what of the rows a thread has, and in which order x is.
constexpr size_t kAccessClasses = 8;
size_t access_class(const KernelPlan& plan);
std::string_view access_class_name(size_t access_class);

// Predicts the time of a product by a plan's kernels: for each access class a linear function of
// the plan's features, whose coefficients, seconds for each, are not negative.
class CostModel {
 public:
  // One time that was measured.
  struct Sample {
    size_t access_class = 0;
    PlanFeatures features = {};
    double seconds = 0.0;
  };

  // The one that is compiled in, configs/cost_models/h200.json.
  static const CostModel& built_in();
  // Strict: the classes and features that there are, each once. Throws Error naming the file.
  static CostModel read(const InputFile& file);
  static CostModel from_json(const JsonValue& root);
  // With the least sum of squares of relative errors. Classes without a sample have no costs.
  // Throws Error for a name of the GPU that is empty, long or not printable, for times that are not
  // positive, and for costs of more than a second: a file has none of these.
  static CostModel fit(std::span<const Sample> samples, std::string gpu);

  std::string to_json() const;
  const std::string& gpu() const { return gpu_; }  // that was measured
  // Infinite for a class that has no costs: its plans come after all others.
  double seconds(size_t access_class, const PlanFeatures& features) const;

 private:
  std::string gpu_;
  std::array<PlanFeatures, kAccessClasses> coefficients_{};
};

}  // namespace sparsellm::general_sparse
