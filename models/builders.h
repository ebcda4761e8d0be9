#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/attention.h"
#include "models/config.h"
#include "models/decoder_layer.h"
#include "models/input_embedding.h"
#include "models/mlp.h"
#include "models/norm.h"
#include "models/weights/linear.h"
#include "models/weights/weight_loader.h"

namespace sparsellm {

// In what the families of architectures differ: one builder each, for models/architectures.cpp.
struct ArchitectureBuilder {
  InputEmbedding (*embedding)(const ModelConfig& config, WeightLoader& weights);
  DecoderLayer (*layer)(const ModelConfig& config, int64_t index, WeightLoader& weights);
  Norm (*final_norm)(const ModelConfig& config, WeightLoader& weights);
};

ArchitectureBuilder llama_builder();
ArchitectureBuilder opt_builder();

// f32 [head_dim / 2] (kernels/rope.h); empty without rotary positions.
OwnedTensor load_rope_frequencies(const ModelConfig& config, WeightLoader& weights);

// Names of modules.
struct AttentionModules {
  std::string q;
  std::string k;
  std::string v;
  std::string out;
  std::string q_norm = {};  // with ModelConfig::qk_norm
  std::string k_norm = {};
};
SelfAttention load_attention(const ModelConfig& config, const AttentionModules& modules,
                             WeightLoader& weights);

// The MLP of a layer, with config.activation_sparsity. `up` are the gate and the up projection, or
// of a plain MLP the up projection alone.
struct MlpModules {
  std::vector<std::string> up;
  std::string down;
};
std::unique_ptr<Mlp> load_mlp(const ModelConfig& config, int64_t layer, const MlpModules& modules,
                              WeightLoader& weights);

// The rank's rows of the output projection: of the matrix "lm_head.weight", or of the token
// embedding if it is tied.
Linear load_head(const ModelConfig& config, const Tensor& token_embedding, WeightLoader& weights);

}  // namespace sparsellm
