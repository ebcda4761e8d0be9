#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/config.h"
#include "models/decoder.h"
#include "models/weight_loader.h"

namespace sparsellm {

// Builds the decoder that config.architecture names, with the activations' dtype of the loader's
// device. Throws Error for an unknown architecture, naming the supported ones.
std::unique_ptr<Decoder> build_decoder(const ModelConfig& config, WeightLoader& weights);

}  // namespace sparsellm
