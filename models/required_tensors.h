#pragma once

#include "models/config.h"
#include "models/storage/safetensors.h"

namespace sparsellm {

// Throws Error for the first tensor of a model of this config, the weights of the blocks' linear
// layers aside, that is missing, has another shape or is not f16, bf16 or f32.
void require_tensors(const Checkpoint& checkpoint, const ModelConfig& config);

}  // namespace sparsellm
