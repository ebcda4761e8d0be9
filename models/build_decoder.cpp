#include "models/build_decoder.h"

#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "models/architectures.h"
#include "models/builders.h"
#include "models/foreign_tensors.h"
#include "models/shard.h"

namespace sparsellm {
namespace {

ArchitectureBuilder builder_of(const ModelConfig& config) {
  return architecture_of(config).builder();
}

Decoder::Parts build_parts(const ModelConfig& config, WeightLoader& weights) {
  const ArchitectureBuilder builder = builder_of(config);
  Decoder::Parts parts;
  parts.embedding = builder.embedding(config, weights);
  parts.rope_frequencies = load_rope_frequencies(config, weights);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    parts.layers.push_back(builder.layer(config, i, weights));
  }
  parts.residual_scale = config.residual_scale;
  parts.final_norm = builder.final_norm(config, weights);
  parts.head = load_head(config, parts.embedding.tokens.view, weights);
  parts.shard = weights.shard();
  return parts;
}

}  // namespace

std::unique_ptr<Decoder> build_decoder(const ModelConfig& config, WeightLoader& weights) {
  require_shared(config, weights.shard());
  if (weights.device().is_cuda()) {
    const std::unique_ptr<WeightLoader> shapes = weights.shapes();
    build_parts(config, *shapes);
    weights.reserve(shapes->footprint());
  }
  Decoder::Parts parts = build_parts(config, weights);
  parts.memory = weights.take_memory();
  auto decoder = std::make_unique<Decoder>(std::move(parts), weights.activation_dtype());
  // RoPE tables of old checkpoints, and a head that is stored although it is tied.
  std::vector<std::string_view> ignored{"rotary_emb.inv_freq"};
  if (config.tied_head) {
    ignored.emplace_back("lm_head.weight");
  }
  const std::vector<std::string_view> left_out = left_out_ends(config);
  ignored.insert(ignored.end(), left_out.begin(), left_out.end());
  weights.require_all_used(ignored);
  weights.finish();
  return decoder;
}

DecoderInput build_input(const ModelConfig& config, WeightLoader& weights) {
  DecoderInput input{.embedding = builder_of(config).embedding(config, weights),
                     .rope_frequencies = load_rope_frequencies(config, weights)};
  weights.finish();
  return input;
}

DecoderLayer build_layer(const ModelConfig& config, int64_t index, WeightLoader& weights) {
  require(index >= 0 && index < config.num_layers, "layer {} of a model with {} layers", index,
          config.num_layers);
  DecoderLayer layer = builder_of(config).layer(config, index, weights);
  weights.finish();
  return layer;
}

}  // namespace sparsellm
