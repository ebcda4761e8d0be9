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
          .epsilon = config.norm_epsilon};
}

InputEmbedding load_embedding(const ModelConfig& config, WeightLoader& weights) {
  return {
      .tokens = weights.matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size),
      .positions = {},
      .position_offset = 0};
}

DecoderLayer load_layer(const ModelConfig& config, int64_t index, WeightLoader& weights) {
  using Bias = WeightLoader::Bias;
  const Bias attention_bias = config.attention_bias ? Bias::yes : Bias::no;
  const int64_t hidden = config.hidden_size;
  const int64_t q_size = config.num_heads * config.head_dim;
  const int64_t kv_size = config.num_kv_heads * config.head_dim;
  const std::string module = fmt::format("model.layers.{}", index);
  const std::string attention = module + ".self_attn.";
  const std::string mlp = module + ".mlp.";

  SelfAttention self_attention{
      .qkv = weights.linear({{attention + "q_proj", q_size},
                             {attention + "k_proj", kv_size},
                             {attention + "v_proj", kv_size}},
                            hidden, attention_bias),
      .out = weights.linear({{attention + "o_proj", hidden}}, q_size, attention_bias),
      .heads = config.num_heads,
      .kv_heads = config.num_kv_heads,
      .head_dim = config.head_dim};
  std::unique_ptr<Mlp> gated_mlp = load_mlp(config, index,
                                            {.up = {{mlp + "gate_proj", config.intermediate_size},
                                                    {mlp + "up_proj", config.intermediate_size}},
                                             .down = {mlp + "down_proj", hidden}},
                                            weights);
  return {.attention_norm = load_norm(config, module + ".input_layernorm", weights),
          .attention = std::move(self_attention),
          .mlp_norm = load_norm(config, module + ".post_attention_layernorm", weights),
          .mlp = std::move(gated_mlp)};
}

Norm load_final_norm(const ModelConfig& config, WeightLoader& weights) {
  return load_norm(config, "model.norm", weights);
}

}  // namespace

ArchitectureBuilder llama_builder() {
  return {.embedding = load_embedding, .layer = load_layer, .final_norm = load_final_norm};
}

}  // namespace sparsellm
