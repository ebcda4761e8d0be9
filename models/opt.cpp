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

DecoderLayer load_layer(const ModelConfig& config, const std::string& module,
                        WeightLoader& weights) {
  using Bias = WeightLoader::Bias;
  const int64_t hidden = config.hidden_size;
  const std::string attention = module + ".self_attn.";

  SelfAttention self_attention{
      .qkv = weights.linear({{attention + "q_proj", hidden},
                             {attention + "k_proj", hidden},
                             {attention + "v_proj", hidden}},
                            hidden, Bias::yes),
      .out = weights.linear({{attention + "out_proj", hidden}}, hidden, Bias::yes),
      .heads = config.num_heads,
      .kv_heads = config.num_kv_heads,
      .head_dim = config.head_dim};
  Linear up = weights.linear({{module + ".fc1", config.intermediate_size}}, hidden, Bias::yes,
                             config.activation);
  Linear down = weights.linear({{module + ".fc2", hidden}}, config.intermediate_size, Bias::yes);
  return {.attention_norm = load_norm(config, module + ".self_attn_layer_norm", weights),
          .attention = std::move(self_attention),
          .mlp_norm = load_norm(config, module + ".final_layer_norm", weights),
          .mlp = std::make_unique<PlainMlp>(std::move(up), std::move(down))};
}

}  // namespace

Decoder::Parts build_opt(const ModelConfig& config, WeightLoader& weights) {
  Decoder::Parts parts;
  parts.token_embedding =
      weights.matrix("model.decoder.embed_tokens.weight", config.vocab_size, config.hidden_size);
  parts.position_embedding =
      weights.matrix("model.decoder.embed_positions.weight", config.max_positions + kPositionOffset,
                     config.hidden_size);
  parts.position_offset = kPositionOffset;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    parts.layers.push_back(load_layer(config, fmt::format("model.decoder.layers.{}", i), weights));
  }
  parts.final_norm = load_norm(config, "model.decoder.final_layer_norm", weights);
  parts.head = load_head(config, parts.token_embedding.view, weights);
  return parts;
}

}  // namespace sparsellm
