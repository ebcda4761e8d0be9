#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "models/linear_layers.h"
#include "tools/bench/linear_shapes.h"
#include "tools/bench/suite/suite_group.h"

namespace sparsellm {
namespace {

constexpr size_t kMostSuiteName = 100;

// Names become paths, parts of the names of cells, and parts of patterns of these.
bool is_suite_name(std::string_view name) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./";
  return !name.empty() && name.size() <= kMostSuiteName && name.front() != '/' &&
         name.front() != '.' && name.back() != '/' &&
         name.find_first_not_of(kAllowed) == std::string_view::npos &&
         name.find("//") == std::string_view::npos && name.find("/.") == std::string_view::npos;
}

void require_suite_name(const JsonValue& value, const std::string& name) {
  require(is_suite_name(name),
          "{} has {}; expected a file of the folder of configs without its ending .json, such as "
          "opt-30b",
          value.name(), quote(name));
}

// What body() returns; its Error begins with the name of the value.
template <class Body>
auto named_by(const JsonValue& value, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    fail("{}: {}", value.name(), error.what());
  }
}

}  // namespace

std::filesystem::path SuiteModels::config_file(const std::string& model) const {
  return configs_ / (model + ".json");
}

std::filesystem::path SuiteModels::plan_file(const std::string& plan) const {
  return configs_ / "plans" / (plan + ".json");
}

const ModelConfig& SuiteModels::config(const JsonValue& value, const std::string& model) {
  require_suite_name(value, model);
  const auto found = read_.find(model);
  if (found != read_.end()) {
    return found->second;
  }
  return read_
      .emplace(model, named_by(value, [&] { return read_model_config_file(config_file(model)); }))
      .first->second;
}

void SuiteModels::require_plan(const JsonValue& value, const std::string& plan,
                               const std::string& model) {
  require_suite_name(value, plan);
  auto found = plans_.find(plan);
  if (found == plans_.end()) {
    found =
        plans_.emplace(plan, named_by(value, [&] { return SparsityPlan::read(plan_file(plan)); }))
            .first;
  }
  std::vector<std::string> modules;
  std::vector<int64_t> blocks;
  for (const LinearLayer& layer : linear_layers(config(value, model))) {
    modules.push_back(layer.module);
    blocks.push_back(layer.block);
  }
  named_by(value, [&] {
    found->second.require_rules_used(modules, blocks);
    return true;
  });
}

std::vector<std::pair<int64_t, int64_t>> SuiteModels::shapes(const JsonValue& value,
                                                             const std::string& model) {
  require_suite_name(value, model);
  std::vector<std::pair<int64_t, int64_t>> shapes;
  for (const LinearShape& shape :
       named_by(value, [&] { return linear_shapes(config_file(model)); })) {
    const std::pair size(shape.out, shape.in);
    if (shape.pruned && std::ranges::find(shapes, size) == shapes.end()) {
      shapes.push_back(size);
    }
  }
  return shapes;
}

}  // namespace sparsellm
