#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sparse/prune/layer_range.h"
#include "sparse/prune/plan.h"

// The parts of a plan's rule; sparse/prune/plan.h says what they are. `rule` is a JSON object out
// of a file that may be hostile, and `name` what messages call it. All throw Error.
namespace sparsellm {

std::vector<std::string> read_patterns(const nlohmann::json& rule, const std::string& name);
LayerRange read_layers(const nlohmann::json& rule, const std::string& name);
LayerPlan read_layer_plan(const nlohmann::json& rule, const std::string& name);

// Throws Error unless the format is "auto", "smallest" or in the registry.
void require_format(std::string_view format);

}  // namespace sparsellm
