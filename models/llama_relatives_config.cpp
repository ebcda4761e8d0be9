// Families with the layers of Llama: each reader here sets what its family changes.

#include <cmath>
#include <string>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "models/config_readers.h"

namespace sparsellm {
namespace {

// Of Mistral and Bamboo: 4,096 positions if the file does not say, and none if it says null.
int64_t read_window(const JsonValue& json, const ModelConfig& config) {
  constexpr int64_t kUsualWindow = 4096;
  const JsonValue window = json["sliding_window"];
  if (window.is_null()) {
    return 0;
  }
  const int64_t positions = window.integer(1, kMaxInt32, kUsualWindow);
  return positions < config.max_positions ? positions : 0;
}

// Qwen's window is there if the file says so, and then of some layers.
void require_whole_context(const JsonValue& json, const ModelConfig& config) {
  constexpr int64_t kUsualWindow = 4096;
  constexpr int64_t kUsualFirstLayer = 28;
  const JsonValue window = json["sliding_window"];
  if (!json["use_sliding_window"].boolean(false) || window.is_null()) {
    return;
  }
  bool has_windows =
      json["max_window_layers"].integer(0, kMaxInt32, kUsualFirstLayer) < config.num_layers;
  if (const JsonValue types = json["layer_types"]; types.present()) {
    has_windows = false;
    for (const std::string& type : types.strings()) {
      has_windows = has_windows || type != "full_attention";
    }
  }
  const int64_t positions = window.integer(1, kMaxInt32, kUsualWindow);
  require(!has_windows || positions >= config.max_positions,
          "{} is {} with use_sliding_window; supported are windows of at least "
          "max_position_embeddings, {}",
          window.name(), positions, config.max_positions);
}

RotaryDefaults qwen_defaults() {
  constexpr int64_t kPositions = 32768;
  return {.common = {.max_positions = kPositions}, .needs_kv_heads = true};
}

}  // namespace

ModelConfig read_mistral_config(const JsonValue& json) {
  constexpr int64_t kPositions = 131072;
  ModelConfig config = read_rotary_config(
      json, {.common = {.bos = 1, .eos = 2, .max_positions = kPositions}, .needs_kv_heads = true});
  config.window = read_window(json, config);
  config.tied_head = json["tie_word_embeddings"].boolean(false);
  return config;
}

ModelConfig read_bamboo_config(const JsonValue& json) {
  ModelConfig config = read_mistral_config(json);
  if (config.activation.kind != Activation::Kind::relu) {
    json["hidden_act"].refuse("only relu is supported");
  }
  config.relu_up = true;  // which its config.json does not say
  return config;
}

ModelConfig read_qwen2_config(const JsonValue& json) {
  ModelConfig config = read_rotary_config(json, qwen_defaults());
  require_whole_context(json, config);
  config.qkv_bias = true;
  config.tied_head = json["tie_word_embeddings"].boolean(false);
  return config;
}

ModelConfig read_qwen3_config(const JsonValue& json) {
  RotaryDefaults defaults = qwen_defaults();
  defaults.head_dim = 128;
  ModelConfig config = read_rotary_config(json, defaults);
  require_whole_context(json, config);
  config.qk_norm = true;
  config.qkv_bias = json["attention_bias"].boolean(false);
  config.attention_out_bias = config.qkv_bias;
  config.tied_head = json["tie_word_embeddings"].boolean(false);
  return config;
}

// Factors as in MiniCPM (Hu et al. 2024, section 3.1 and appendix A.1).
ModelConfig read_minicpm_config(const JsonValue& json) {
  constexpr float kMost = 1e6f;
  ModelConfig config = read_rotary_config(json, {.common = {.bos = 1, .eos = 2}});
  require_boolean(json["attention_bias"], false);
  config.tied_head = json["tie_word_embeddings"].boolean(true);
  config.embedding_scale = json["scale_emb"].number(1e-6f, kMost, 1.0f);
  config.residual_scale = json["scale_depth"].number(1e-6f, kMost, 1.0f) /
                          std::sqrt(static_cast<float>(config.num_layers));
  config.logit_scale = static_cast<float>(json["dim_model_base"].integer(1, kMaxWidth, 1)) /
                       static_cast<float>(config.hidden_size);
  return config;
}

}  // namespace sparsellm
