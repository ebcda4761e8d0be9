#include "models/random_plan.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "models/linear_layers.h"
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
  return {.kind = prune.scope == PruneScope::row ? ZeroPattern::Kind::rows
                                                 : ZeroPattern::Kind::uniform};
}

// What a plan's "auto" and "smallest" stand for: the format that runs on the device in which a
// layer of random weights can be expected to take the fewest bytes.
std::string expected_format(std::string_view planned, const LinearLayer& layer, double sparsity,
                            const RandomPlanOptions& options) {
  const auto all = weight_formats();
  const std::vector<const WeightFormat*> candidates =
      planned == kAutoFormat ? auto_formats() : std::vector(all.begin(), all.end());
  EncodedWeight header{
      .format = {},
      .version = 0,
      .dtype = options.dtype,
      .rows = layer.rows,
      .columns = layer.columns,
      .nonzeros = std::llround((1.0 - sparsity) * static_cast<double>(layer.rows * layer.columns)),
      .parts = {}};
  std::string best;
  int64_t fewest = 0;
  for (const WeightFormat* format : candidates) {  // the first is the dense one
    if (!format->holds(options.dtype) || !format->runs_on(options.device)) {
      continue;
    }
    header.format = format->name();
    const int64_t bytes = format->expected_bytes(header);
    if (best.empty() || bytes < fewest) {
      best = header.format;
      fewest = bytes;
    }
  }
  return best;
}

RandomLinear random_linear(const LayerPlan& plan, const LinearLayer& layer,
                           const RandomPlanOptions& options) {
  RandomLinear result;
  result.sparsity = sparsity_of(plan.prune);
  result.pattern = pattern_of(plan.prune, result.sparsity, options.pattern);
  if (!options.format.empty()) {
    result.format = options.format;
  } else if (plan.format == kAutoFormat || plan.format == kSmallestFormat) {
    result.format = expected_format(plan.format, layer, result.sparsity, options);
  } else {
    result.format = plan.format;
  }
  return result;
}

}  // namespace

RandomLinears plan_random_linears(const SparsityPlan& plan, const ModelConfig& config,
                                  const RandomPlanOptions& options) {
  std::vector<std::string> modules;
  std::vector<int64_t> blocks;
  RandomLinears result;
  for (const JoinedLinear& joined : joined_linear_layers(config)) {
    std::vector<RandomLinear> parts;
    for (const LinearLayer& layer : joined.parts) {
      modules.push_back(layer.module);
      blocks.push_back(layer.block);
      parts.push_back(random_linear(plan.for_tensor(layer.module, layer.block, config.num_layers),
                                    layer, options));
    }
    const auto most_rows = std::ranges::max_element(joined.parts, {}, &LinearLayer::rows);
    const std::string format = parts[static_cast<size_t>(most_rows - joined.parts.begin())].format;
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].format = format;
      result.emplace(joined.parts[i].module, std::move(parts[i]));
    }
  }
  plan.require_rules_used(modules, blocks);
  return result;
}

}  // namespace sparsellm
