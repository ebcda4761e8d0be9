#include "sparse/general_sparse/search/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/general_sparse/search/cost_model_text.h"

namespace sparsellm::general_sparse {
namespace {

constexpr int64_t kMaxModelBytes = 1 << 16;
constexpr int kMaxModelDepth = 4;
constexpr size_t kMostGpuName = 100;
constexpr float kMostCost = 1.0f;  // seconds
constexpr double kLeastSeconds =
    1e-9;  // of a product; the square of a shorter time would underflow

constexpr std::array<std::string_view, kAccessClasses> kClassNames{"one, whole",
                                                                   "one, split",
                                                                   "several, whole",
                                                                   "several, split",
                                                                   "one, whole, by token",
                                                                   "one, split, by token",
                                                                   "several, whole, by token",
                                                                   "several, split, by token"};

std::string expected_gpu_name() {
  return fmt::format("expected 1 to {} printable characters", kMostGpuName);
}

bool is_gpu_name(std::string_view name) {
  return !name.empty() && name.size() <= kMostGpuName &&
         std::ranges::all_of(name, [](char c) { return c >= ' ' && c <= '~'; });
}

// As f64: a JsonValue reads numbers as f32.
double coefficient(const JsonValue& value) {
  value.number(0.0f, kMostCost);
  return value.raw().get<double>();
}

// The x >= 0 with the least |A x - b|^2, of A^T A and A^T b: by one unknown after the other, again
// and again.
PlanFeatures least_squares(const std::array<PlanFeatures, kPlanFeatures>& gram,
                           const PlanFeatures& right) {
  constexpr int kMostSweeps = 20000;
  constexpr double kConverged = 1e-12;  // of the largest change that a sweep makes to |A x|^2
  PlanFeatures x{};
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    double largest = 0.0;
    for (size_t j = 0; j < kPlanFeatures; ++j) {
      if (gram[j][j] == 0.0) {
        continue;
      }
      double rest = right[j];
      for (size_t k = 0; k < kPlanFeatures; ++k) {
        rest -= gram[j][k] * x[k];
      }
      const double next = std::max(0.0, x[j] + rest / gram[j][j]);
      const double change = next - x[j];
      largest = std::max(largest, change * change * gram[j][j]);
      x[j] = next;
    }
    if (largest < kConverged) {
      break;
    }
  }
  return x;
}

}  // namespace

size_t access_class(const KernelPlan& plan) {
  constexpr size_t kOfXByRows = 4;  // classes whose B is by rows come first
  return static_cast<size_t>(plan.thread.rows) * 2 + static_cast<size_t>(plan.thread.ends) +
         (plan.x_order == XOrder::by_token ? kOfXByRows : 0);
}

std::string_view access_class_name(size_t access_class) { return kClassNames.at(access_class); }

double CostModel::seconds(size_t access_class, const PlanFeatures& features) const {
  const PlanFeatures& costs = coefficients_.at(access_class);
  if (std::ranges::all_of(costs, [](double cost) { return cost == 0.0; })) {
    return std::numeric_limits<double>::infinity();
  }
  double sum = 0.0;
  for (size_t i = 0; i < kPlanFeatures; ++i) {
    sum += costs[i] * features[i];
  }
  return sum;
}

CostModel CostModel::fit(std::span<const Sample> samples, std::string gpu) {
  require(is_gpu_name(gpu), "cost model: the GPU is {}; {}", quote(gpu), expected_gpu_name());
  CostModel model;
  model.gpu_ = std::move(gpu);
  for (size_t of_class = 0; of_class < kAccessClasses; ++of_class) {
    std::array<PlanFeatures, kPlanFeatures> gram{};
    PlanFeatures right{};
    double count = 0.0;
    for (const Sample& sample : samples) {
      if (sample.access_class != of_class) {
        continue;
      }
      require(sample.seconds >= kLeastSeconds && std::isfinite(sample.seconds),
              "cost model: a product took {} seconds", sample.seconds);
      count += 1.0;
      for (size_t i = 0; i < kPlanFeatures; ++i) {
        const double relative = sample.features[i] / sample.seconds;
        right[i] += relative;
        for (size_t j = 0; j < kPlanFeatures; ++j) {
          gram[i][j] += relative * sample.features[j] / sample.seconds;
        }
      }
    }
    if (count == 0.0) {
      continue;
    }
    for (size_t i = 0; i < kPlanFeatures; ++i) {
      right[i] /= count;
      for (double& element : gram[i]) {
        element /= count;
      }
    }
    const PlanFeatures costs = least_squares(gram, right);
    for (size_t i = 0; i < kPlanFeatures; ++i) {
      require(costs[i] <= kMostCost, "cost model: {} of '{}' costs {} seconds; at most {} expected",
              name_of(static_cast<PlanFeature>(i)), kClassNames[of_class], costs[i], kMostCost);
    }
    model.coefficients_[of_class] = costs;
  }
  return model;
}

CostModel CostModel::from_json(const JsonValue& root) {
  CostModel model;
  root.allow_only({"description", "gpu", "seconds"});
  if (root["description"].present()) {
    root["description"].string();
  }
  model.gpu_ = root["gpu"].string();
  if (!is_gpu_name(model.gpu_)) {
    root["gpu"].refuse(expected_gpu_name());
  }
  const JsonValue classes = root["seconds"];
  require(classes.keys().size() == kAccessClasses, "{} has {} classes; expected {}", classes.name(),
          classes.keys().size(), kAccessClasses);
  for (size_t i = 0; i < kAccessClasses; ++i) {
    const JsonValue costs = classes[kClassNames[i]];
    require(costs.keys().size() == kPlanFeatures, "{} has {} costs; expected {}", costs.name(),
            costs.keys().size(), kPlanFeatures);
    for (size_t j = 0; j < kPlanFeatures; ++j) {
      model.coefficients_[i][j] =
          coefficient(costs[sparsellm::general_sparse::name_of(static_cast<PlanFeature>(j))]);
    }
  }
  return model;
}

CostModel CostModel::read(const InputFile& file) {
  const JsonDocument document = read_json_file(file, kMaxModelBytes, kMaxModelDepth);
  return from_json(JsonValue(document, file.path().string()));
}

const CostModel& CostModel::built_in() {
  static const CostModel model = [] {
    const JsonDocument document = parse_json(kCostModelText, "cost model", kMaxModelDepth);
    return from_json(JsonValue(document, "cost model"));
  }();
  return model;
}

std::string CostModel::to_json() const {
  nlohmann::ordered_json classes;
  for (size_t i = 0; i < kAccessClasses; ++i) {
    nlohmann::ordered_json costs;
    for (size_t j = 0; j < kPlanFeatures; ++j) {
      costs[std::string(name_of(static_cast<PlanFeature>(j)))] = coefficients_[i][j];
    }
    classes[std::string(kClassNames[i])] = std::move(costs);
  }
  const nlohmann::ordered_json root{
      {"description",
       "Seconds of a product by generated kernels of general_sparse, for each of what its plan and "
       "matrix have."},
      {"gpu", gpu_},
      {"seconds", std::move(classes)}};
  constexpr int kIndent = 2;
  return root.dump(kIndent) + "\n";
}

}  // namespace sparsellm::general_sparse
