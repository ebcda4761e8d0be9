#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "models/config.h"
#include "models/weights/weight_request.h"

namespace sparsellm {

// A linear layer of a decoder block under its Hugging Face name. What is pruned and encoded are
// these; embeddings, norms and the head are not.
struct LinearLayer {
  std::string module;  // "model.layers.3.mlp.up_proj"; its weight is "<module>.weight"
  int64_t block = 0;
  int64_t rows = 0;     // outputs
  int64_t columns = 0;  // inputs
};

// All of a model, whole, block by block, in the order in which a block's builder asks for them.
std::vector<LinearLayer> linear_layers(const ModelConfig& config);

// Layers with the same input that the engine joins by rows, so that one product computes all of
// them: q, k and v; gate and up. Most are alone.
struct JoinedLinear {
  std::vector<LinearLayer> parts;  // at least one
  int64_t rows = 0;                // of all parts
  int64_t columns = 0;
  bool has_bias = false;
  Activation activation;       // of the result
  WeightRequest request = {};  // by which a loader makes it
  // Its neurons are read one by one (WeightLoader::dense_linear()).
  bool always_dense = false;

  // Of its first part: what LayerFormats goes by.
  std::string first_weight() const { return parts.front().module + ".weight"; }
  // Of the whole, whose parts have these densities: shares of nonzeros.
  double density(const std::function<double(const LinearLayer& part)>& density_of) const;
};

// The same layers as they are joined, in the same order; what a rank has of them, where it has
// something. Throws Error for ranks that cannot share the model.
std::vector<JoinedLinear> joined_linear_layers(const ModelConfig& config, const Shard& shard = {});

// "mlp.up_proj", what the layers of all blocks have in common.
std::string kind_of(const LinearLayer& layer);

}  // namespace sparsellm
