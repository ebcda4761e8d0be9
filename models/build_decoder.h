#pragma once

#include <cstdint>
#include <memory>

#include "models/config.h"
#include "models/decoder.h"
#include "models/decoder_layer.h"
#include "models/input_embedding.h"
#include "models/weights/weight_loader.h"

namespace sparsellm {

// Builds the decoder that config.architecture names, or the share of it that the loader's rank has,
// with the activations' dtype of the loader's device. Throws Error for an architecture that is not
// one of models/architectures.h, and for ranks that cannot share the model.
std::unique_ptr<Decoder> build_decoder(const ModelConfig& config, WeightLoader& weights);

// Pieces of that decoder, for callers without room for all of it: what comes before the layers, and
// the layer `index`, in [0, config.num_layers). The loader has finished when they return.
struct DecoderInput {
  InputEmbedding embedding;
  OwnedTensor rope_frequencies;  // as in Decoder::Parts
};
DecoderInput build_input(const ModelConfig& config, WeightLoader& weights);
DecoderLayer build_layer(const ModelConfig& config, int64_t index, WeightLoader& weights);

}  // namespace sparsellm
