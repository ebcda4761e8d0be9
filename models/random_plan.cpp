#include "models/random_plan.h"

#include <cstdint>
#include <vector>

#include "models/format_choice.h"
#include "models/layer_kinds.h"
#include "models/linear_layers.h"
#include "sparse/choice/format_rules.h"
#include "sparse/dense/dense.h"
#include "sparse/records_choice.h"
#include "sparse/registry.h"

namespace sparsellm {
namespace {

double sparsity_of(const PruneSettings& prune) {
  using Kind = PruneMethod::Kind;
  switch (prune.method.kind) {
    case Kind::none:
      return 0.0;
    case Kind::n_m:
      return 1.0 - static_cast<double>(prune.method.kept) / prune.method.group;
    default:
      return prune.sparsity;
  }
}

ZeroPattern pattern_of(const PruneSettings& prune, double sparsity,
                       const std::optional<ZeroPattern>& instead) {
  if (sparsity == 0.0) {
    return {};
  }
  if (instead) {
    return *instead;
  }
  if (prune.block != BlockShape()) {
    return {.kind = ZeroPattern::Kind::kept_blocks, .block = prune.block};
  }
  return {.kind = prune.scope == PruneScope::row ? ZeroPattern::Kind::rows
                                                 : ZeroPattern::Kind::uniform};
}

const WeightFormat& expected_smallest(const WeightSize& size, const std::string& records,
                                      const RandomPlanOptions& options) {
  const auto bytes = [&](const WeightFormat& format) {
    EncodedWeight header = weight_header(format, size, options.dtype);
    format.tell_layout(header, records_in(format.name(), records));
    return format.expected_bytes(header);
  };
  const WeightFormat* smallest = &dense_format();
  for (const WeightFormat* format :
       has_narrow_values(records) ? formats_with_values(records) : smallest_formats()) {
    if (format->holds(options.dtype) && format->runs_on(options.device) &&
        bytes(*format) < bytes(*smallest)) {
      smallest = format;
    }
  }
  return *smallest;
}

// What the plan, or an option that goes before it, says of a layer.
struct PlannedFormat {
  std::string format;
  std::string records;
};

std::string decide_format(const PlannedFormat& plan, const JoinedLinear& layer, double density,
                          const RandomPlanOptions& options) {
  const std::string& planned = plan.format;
  const bool kept = options.keeps_formats && planned != kAutoFormat;
  if (!kept && !options.format.empty() && options.format != kAutoFormat) {
    return options.format;
  }
  const LayerKind kind{
      .layer = layer,
      .weight = {.density = density, .records = plan.records, .dtype = options.dtype},
      .first_weights = {}};
  if (planned == kSmallestFormat) {
    return std::string(expected_smallest(kind.size(), plan.records, options).name());
  }
  if (planned != kAutoFormat || options.format == kAutoFormat) {
    return planned;
  }
  return choose_by_rules(kind, FormatRules::built_in(),
                         {.device = options.device, .tokens = {kDecodedTokens}})
      .in.format;
}

// Adds the parts of a layer.
void add_planned(const SparsityPlan& plan, const JoinedLinear& joined, int64_t blocks,
                 const RandomPlanOptions& options, RandomLinears& result) {
  PlannedFormat planned;
  int64_t most_rows = 0;
  for (const LinearLayer& layer : joined.parts) {
    const LayerPlan of_layer = plan.for_tensor(layer.module, layer.block, blocks);
    const double sparsity = sparsity_of(of_layer.prune);
    result.emplace(layer.module,
                   RandomLinear{.sparsity = sparsity,
                                .pattern = pattern_of(of_layer.prune, sparsity, options.pattern),
                                .format = {},
                                .records = {}});
    if (layer.rows > most_rows) {
      most_rows = layer.rows;
      planned = {.format = of_layer.format,
                 .records = options.records.empty() ? of_layer.records() : options.records};
    }
  }
  const double density = joined.density(
      [&](const LinearLayer& layer) { return 1.0 - result.at(layer.module).sparsity; });
  for (const LinearLayer& layer : joined.parts) {
    RandomLinear& linear = result.at(layer.module);
    linear.format = decide_format(planned, joined, density, options);
    linear.records = planned.records;
  }
}

}  // namespace

RandomLinears plan_random_linears(const SparsityPlan& plan, const ModelConfig& config,
                                  const RandomPlanOptions& options) {
  std::vector<std::string> modules;
  std::vector<int64_t> blocks;
  RandomLinears result;
  for (const JoinedLinear& joined : joined_linear_layers(config)) {
    for (const LinearLayer& layer : joined.parts) {
      modules.push_back(layer.module);
      blocks.push_back(layer.block);
    }
    add_planned(plan, joined, config.num_layers, options, result);
  }
  plan.require_rules_used(modules, blocks);
  return result;
}

}  // namespace sparsellm
