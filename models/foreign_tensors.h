#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/config.h"
#include "models/storage/safetensors.h"

namespace sparsellm {

// Tensors of published checkpoints that the models of this engine do not have.

// Whether it is one that is left out (Architecture::left_out): of a predictor that came with the
// weights. Here signs predict which neurons are zero.
bool is_left_out(std::string_view tensor, const ModelConfig& config);
// The names of all that a checkpoint has.
std::vector<std::string> left_out_tensors(const Checkpoint& checkpoint, const ModelConfig& config);
// A line for the user about them; empty if there are none.
std::string left_out_warning(std::span<const std::string> names);

// Throws Error for projections that are one tensor, as Phi-3 stores them (qkv_proj, gate_up_proj):
// else the message would be that q_proj is missing.
void require_separate_projections(const Checkpoint& checkpoint);

}  // namespace sparsellm
