#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "models/config_readers.h"

namespace sparsellm {

ModelConfig read_opt_config(const JsonValue& json) {
  require_boolean(json["do_layer_norm_before"], true);
  require_boolean(json["_remove_final_layer_norm"], false);
  require_boolean(json["layer_norm_elementwise_affine"], true);
  require_boolean(json["enable_bias"], true);

  ModelConfig config = read_common_config(json, {.bos = 2, .eos = 2});
  config.intermediate_size = json["ffn_dim"].integer(1, kMaxWidth);
  config.num_kv_heads = config.num_heads;
  config.head_dim = divided_head_dim(json, config);
  const JsonValue projection = json["word_embed_proj_dim"];
  if (projection.integer(1, kMaxWidth, config.hidden_size) != config.hidden_size) {
    projection.refuse(fmt::format("only hidden_size, {}, is supported", config.hidden_size));
  }
  config.norm = ModelConfig::Norm::layer_norm;
  config.positions = ModelConfig::Positions::learned;
  config.activation = read_activation(json, "activation_function");
  config.qkv_bias = true;
  config.attention_out_bias = true;
  config.mlp_bias = true;
  config.tied_head = json["tie_word_embeddings"].boolean(true);
  return config;
}

}  // namespace sparsellm
