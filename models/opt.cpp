#include <memory>
#include <string>
#include <utility>

#include "kernels/base/error.h"
#include "models/builders.h"

namespace sparsellm {
namespace {

// The first two rows of OPT's position table are never used: positions start at row 2.
constexpr int64_t kPositionOffset = 2;

Norm load_norm(const ModelConfig& config, const std::string& module, WeightLoader& weights) {
  return {.kind = config.norm,
          .weight = weights.vector(module + ".weight", config.hidden_size),
          .bias = weights.vector(module + ".bias", config.hidden_size),
          .epsilon = config.norm_epsilon};
}

InputEmbedding load_embedding(const ModelConfig& config, WeightLoader& weights) {
  return {.tokens = weights.matrix("model.decoder.embed_tokens.weight", config.vocab_size,
                                   config.hidden_size),
          .positions = weights.matrix("model.decoder.embed_positions.weight",
                                      config.max_positions + kPositionOffset, config.hidden_size),
          .position_offset = kPositionOffset};
}

DecoderLayer load_layer(const ModelConfig& config, int64_t index, WeightLoader& weights) {
  const std::string module = fmt::format("model.decoder.layers.{}", index);
  const std::string attention = module + ".self_attn.";

  SelfAttention self_attention = load_attention(config,
                                                {.q = attention + "q_proj",
                                                 .k = attention + "k_proj",
                                                 .v = attention + "v_proj",
                                                 .out = attention + "out_proj"},
                                                weights);
  std::unique_ptr<Mlp> plain_mlp =
      load_mlp(config, index, {.up = {module + ".fc1"}, .down = module + ".fc2"}, weights);
  return {.attention_norm = load_norm(config, module + ".self_attn_layer_norm", weights),
          .attention = std::move(self_attention),
          .mlp_norm = load_norm(config, module + ".final_layer_norm", weights),
          .mlp = std::move(plain_mlp)};
}

Norm load_final_norm(const ModelConfig& config, WeightLoader& weights) {
  return load_norm(config, "model.decoder.final_layer_norm", weights);
}

}  // namespace

ArchitectureBuilder opt_builder() {
  return {.embedding = load_embedding, .layer = load_layer, .final_norm = load_final_norm};
}

}  // namespace sparsellm
