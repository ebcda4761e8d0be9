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
  using Bias = WeightLoader::Bias;
  const int64_t hidden = config.hidden_size;
  const int64_t q_size = config.num_heads * config.head_dim;
  const int64_t kv_size = config.num_kv_heads * config.head_dim;
  const std::string module = fmt::format("model.decoder.layers.{}", index);
  const std::string attention = module + ".self_attn.";

  SelfAttention self_attention{
      .qkv = weights.linear({{attention + "q_proj", q_size},
                             {attention + "k_proj", kv_size},
                             {attention + "v_proj", kv_size}},
                            hidden, Bias::yes),
      .out = weights.linear({{attention + "out_proj", hidden}}, q_size, Bias::yes),
      .heads = config.num_heads,
      .kv_heads = config.num_kv_heads,
      .head_dim = config.head_dim};
  std::unique_ptr<Mlp> plain_mlp = load_mlp(
      config, index,
      {.up = {{module + ".fc1", config.intermediate_size}}, .down = {module + ".fc2", hidden}},
      weights);
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
