#include <memory>
#include <string>
#include <utility>

#include "kernels/base/error.h"
#include "models/builders.h"

namespace sparsellm {
namespace {

Norm load_norm(const ModelConfig& config, const std::string& module, WeightLoader& weights) {
  return {.kind = config.norm,
          .weight = weights.vector(module + ".weight", config.hidden_size),
          .bias = {},
          .epsilon = config.norm_epsilon,
          .delta_scale = config.residual_scale};
}

InputEmbedding load_embedding(const ModelConfig& config, WeightLoader& weights) {
  return {
      .tokens = weights.matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size),
      .positions = {},
      .position_offset = 0,
      .token_scale = config.embedding_scale};
}

DecoderLayer load_layer(const ModelConfig& config, int64_t index, WeightLoader& weights) {
  const std::string module = fmt::format("model.layers.{}", index);
  const std::string attention = module + ".self_attn.";
  const std::string mlp = module + ".mlp.";

  SelfAttention self_attention = load_attention(config,
                                                {.q = attention + "q_proj",
                                                 .k = attention + "k_proj",
                                                 .v = attention + "v_proj",
                                                 .out = attention + "o_proj",
                                                 .q_norm = attention + "q_norm",
                                                 .k_norm = attention + "k_norm"},
                                                weights);
  std::unique_ptr<Mlp> gated_mlp =
      load_mlp(config, index,
               {.up = {mlp + "gate_proj", mlp + "up_proj"}, .down = mlp + "down_proj"}, weights);
  return {.attention_norm = load_norm(config, module + ".input_layernorm", weights),
          .attention = std::move(self_attention),
          .mlp_norm = load_norm(config, module + ".post_attention_layernorm", weights),
          .mlp = std::move(gated_mlp)};
}

Norm load_final_norm(const ModelConfig& config, WeightLoader& weights) {
  Norm norm = load_norm(config, "model.norm", weights);
  norm.scale = config.logit_scale;
  return norm;
}

}  // namespace

ArchitectureBuilder llama_builder() {
  return {.embedding = load_embedding, .layer = load_layer, .final_norm = load_final_norm};
}

}  // namespace sparsellm
