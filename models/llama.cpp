#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/rope.h"
#include "models/builders.h"

namespace sparsellm {
namespace {

Norm load_norm(const ModelConfig& config, const std::string& module, WeightLoader& weights) {
  return {.kind = config.norm,
          .weight = weights.vector(module + ".weight", config.hidden_size),
          .bias = {},
          .epsilon = config.norm_epsilon};
}

DecoderLayer load_layer(const ModelConfig& config, const std::string& module,
                        WeightLoader& weights) {
  using Bias = WeightLoader::Bias;
  const Bias attention_bias = config.attention_bias ? Bias::yes : Bias::no;
  const Bias mlp_bias = config.mlp_bias ? Bias::yes : Bias::no;
  const int64_t hidden = config.hidden_size;
  const int64_t q_size = config.num_heads * config.head_dim;
  const int64_t kv_size = config.num_kv_heads * config.head_dim;
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
  Linear gate_up = weights.linear(
      {{mlp + "gate_proj", config.intermediate_size}, {mlp + "up_proj", config.intermediate_size}},
      hidden, mlp_bias);
  Linear down = weights.linear({{mlp + "down_proj", hidden}}, config.intermediate_size, mlp_bias);
  return {
      .attention_norm = load_norm(config, module + ".input_layernorm", weights),
      .attention = std::move(self_attention),
      .mlp_norm = load_norm(config, module + ".post_attention_layernorm", weights),
      .mlp = std::make_unique<GatedMlp>(std::move(gate_up), config.activation, std::move(down))};
}

}  // namespace

Decoder::Parts build_llama(const ModelConfig& config, WeightLoader& weights) {
  Decoder::Parts parts;
  parts.token_embedding =
      weights.matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size);
  parts.rope_frequencies =
      weights.constants("the RoPE frequencies",
                        rope_frequencies(config.head_dim, config.rope_theta, config.rope_scaling));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    parts.layers.push_back(load_layer(config, fmt::format("model.layers.{}", i), weights));
  }
  parts.final_norm = load_norm(config, "model.norm", weights);
  parts.head = load_head(config, parts.token_embedding.view, weights);
  return parts;
}

}  // namespace sparsellm
