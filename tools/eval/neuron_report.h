#pragma once

#include <string>
#include <string_view>

#include "engine/engine.h"
#include "kernels/base/json_writer.h"

namespace sparsellm {

// What an engine with activation sparsity has passed over so far.

// "21.0 % not zero; 43.0 % skipped"; empty if it has counted nothing, as where all was scored as
// prompts.
std::string neuron_shares_text(const Engine& engine);
// The mode with its settings, and those shares if there are any: "exact; 21.0 % not zero; 0.0 %
// skipped".
std::string activation_sparsity_text(const Engine& engine);

// A member: {"mode": "predict", "skipped": 0.43, "active": 0.21}, shares of the neurons; null if
// there are none.
void add_activation_sparsity(std::string_view name, const Engine& engine, JsonWriter& json);

}  // namespace sparsellm
