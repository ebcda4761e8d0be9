#pragma once

#include "models/config.h"
#include "models/decoder.h"
#include "models/weight_loader.h"

namespace sparsellm {

// One per family of architectures, for the registry.
Decoder::Parts build_llama(const ModelConfig& config, WeightLoader& weights);
Decoder::Parts build_opt(const ModelConfig& config, WeightLoader& weights);

// The output projection: the matrix "lm_head.weight", or the token embedding if it is tied.
Linear load_head(const ModelConfig& config, const Tensor& token_embedding, WeightLoader& weights);

}  // namespace sparsellm
