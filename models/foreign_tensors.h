#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/config.h"
#include "models/storage/safetensors.h"

namespace sparsellm {

// Tensors of published checkpoints that the models of this engine do not have.

// The ends of the names of those that are left out: of Architecture::left_out, of predictors that
// came with the weights (here signs predict which neurons are zero), and in a checkpoint that
// compressed-tensors has quantised scales and zero points of activations and of the KV cache.
std::vector<std::string_view> left_out_ends(const ModelConfig& config);
bool is_left_out(std::string_view tensor, const ModelConfig& config);
// The names of all that a checkpoint has of predictors.
std::vector<std::string> left_out_tensors(const Checkpoint& checkpoint, const ModelConfig& config);
// A line for the user about them; empty if there are none.
std::string left_out_warning(std::span<const std::string> names);

// Throws Error for a tensor of compressed-tensors' quantised weights that belongs to no linear
// layer of a decoder block, as of a head or an embedding that was not left out of the quantisation.
void require_only_linear_layers_quantized(const Checkpoint& checkpoint, const ModelConfig& config);

// Throws Error for projections that are one tensor, as Phi-3 stores them (qkv_proj, gate_up_proj):
// else the message would be that q_proj is missing.
void require_separate_projections(const Checkpoint& checkpoint);

}  // namespace sparsellm
