#include "sparse/prune/plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/counter_random.h"
#include "sparse/prune/glob.h"
#include "sparse/prune/plan_reader.h"
#include "sparse/records_choice.h"

namespace sparsellm {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 16;
constexpr int kMaxDepth = 8;
constexpr int64_t kMaxRules = 100;

// FNV-1a
uint64_t hash(std::string_view text) {
  uint64_t value = 0xcbf29ce484222325u;
  for (char c : text) {
    value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return value;
}

}  // namespace

LayoutOptions LayerPlan::layout_in(std::string_view chosen) const {
  return chosen == format ? LayoutOptions{.layout = layout} : records_in(chosen, records());
}

std::string LayerPlan::records() const {
  return may_be_records(format)  ? layout
         : always_rounds(format) ? records_in(format, layout).layout
                                 : std::string();
}

SparsityPlan SparsityPlan::read(const std::filesystem::path& path) {
  const JsonDocument document = read_json_file(path, kMaxFileBytes, kMaxDepth);
  const std::string file = path.string();
  const JsonValue json(document, file);
  json.allow_only({"description", "rules", "default"});
  const JsonValue rules = json["rules"];
  const JsonValue fallback = json["default"];
  require(rules.present() || fallback.present(), "{} has neither rules nor a default", file);

  SparsityPlan plan;
  if (json["description"].present()) {
    plan.description_ = json["description"].string();
  }
  const int64_t count = rules.present() ? rules.size() : 0;
  require(count <= kMaxRules, "{} has {} rules; expected at most {}", file, count, kMaxRules);
  for (int64_t i = 0; i < count; ++i) {
    const nlohmann::json& rule = document.root().at("rules").at(static_cast<size_t>(i));
    const std::string name = fmt::format("{}: rule {}", file, i + 1);
    JsonValue(rule, name)
        .allow_only({"tensors", "layers", "prune", "sparsity", "scope", "block", "seed", "format",
                     "records", "values"});
    plan.add_rule({.name = name,
                   .patterns = read_patterns(rule, name),
                   .layers = read_layers(rule, name),
                   .plan = read_layer_plan(rule, name)});
  }
  if (fallback.present()) {
    fallback.allow_only(
        {"prune", "sparsity", "scope", "block", "seed", "format", "records", "values"});
    plan.default_ = read_layer_plan(document.root().at("default"), fallback.name());
  }
  return plan;
}

SparsityPlan SparsityPlan::uniform(const PruneSettings& settings, std::string format,
                                   std::string layout) {
  require_format(format);
  if (may_be_records(format)) {
    check_records(layout);
  } else {
    weight_format(format).check_layout(layout);
  }
  SparsityPlan plan;
  plan.default_ = {.prune = settings, .format = std::move(format), .layout = std::move(layout)};
  return plan;
}

void SparsityPlan::add_rule(Rule rule) {
  for (const Rule& earlier : rules_) {
    if (earlier.layers != LayerRange{} && earlier.layers != rule.layers) {
      continue;
    }
    for (const std::string& pattern : rule.patterns) {
      const auto cover =
          std::find_if(earlier.patterns.begin(), earlier.patterns.end(),
                       [&](const std::string& other) { return glob_covers(other, pattern); });
      require(cover == earlier.patterns.end(),
              "{}: the pattern {} matches nothing that {} of an earlier rule does not match",
              rule.name, quote(pattern), quote(cover == earlier.patterns.end() ? "" : *cover));
    }
  }
  rules_.push_back(std::move(rule));
}

bool SparsityPlan::Rule::matches_name(std::string_view module) const {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return glob_matches(pattern, module); });
}

LayerPlan SparsityPlan::for_tensor(std::string_view module, int64_t layer, int64_t layers) const {
  require(0 <= layer && layer < layers, "the layer {} of a model with {} layers", layer, layers);
  const auto matches = [&](const Rule& rule) {
    try {
      return rule.matches_name(module) && rule.layers.contains(layer, layers);
    } catch (const Error& error) {
      fail("{}: {}", rule.name, error.what());
    }
  };
  const auto rule = std::find_if(rules_.begin(), rules_.end(), matches);
  LayerPlan plan = rule == rules_.end() ? default_ : rule->plan;
  plan.prune.seed = mix_bits(plan.prune.seed) ^ hash(module);
  return plan;
}

void SparsityPlan::require_rules_used(std::span<const std::string> modules,
                                      std::span<const int64_t> layers) const {
  const int64_t count = layers.empty() ? 0 : *std::max_element(layers.begin(), layers.end()) + 1;
  for (const Rule& rule : rules_) {
    require(std::any_of(modules.begin(), modules.end(),
                        [&](const std::string& module) { return rule.matches_name(module); }),
            "{}: the pattern {} matches none of the model's {} linear layers", rule.name,
            quote(rule.patterns.front()), modules.size());
    bool used = false;
    for (size_t i = 0; i < modules.size() && !used; ++i) {
      used = rule.matches_name(modules[i]) && rule.layers.contains(layers[i], count);
    }
    require(used, "{}: its layers are none of the model's {}", rule.name, count);
  }
}

}  // namespace sparsellm
