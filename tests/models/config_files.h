#pragma once

#include <string>
#include <string_view>

#include "models/config.h"

namespace sparsellm::testing {

inline constexpr std::string_view kOpt = R"({
  "architectures": ["OPTForCausalLM"], "vocab_size": 1000, "hidden_size": 64, "ffn_dim": 256,
  "num_hidden_layers": 3, "num_attention_heads": 4, "activation_function": "relu"})";

inline constexpr std::string_view kLlama = R"({
  "architectures": ["LlamaForCausalLM"], "vocab_size": 1000, "hidden_size": 64,
  "intermediate_size": 200, "num_hidden_layers": 3, "num_attention_heads": 4,
  "hidden_act": "silu"})";

// The keys of published files, with small sizes.
inline constexpr std::string_view kMistral = R"({
  "architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": 1000,
  "hidden_size": 64, "intermediate_size": 200, "num_hidden_layers": 3, "num_attention_heads": 4,
  "num_key_value_heads": 2, "hidden_act": "silu", "sliding_window": null})";
inline constexpr std::string_view kQwen2 = R"({
  "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 1000,
  "hidden_size": 64, "intermediate_size": 200, "num_hidden_layers": 3, "num_attention_heads": 4,
  "num_key_value_heads": 2, "hidden_act": "silu"})";
inline constexpr std::string_view kMiniCpm = R"({
  "architectures": ["MiniCPMForCausalLM"], "model_type": "minicpm", "vocab_size": 1000,
  "hidden_size": 64, "intermediate_size": 200, "num_hidden_layers": 4, "num_attention_heads": 4,
  "hidden_act": "fatrelu", "hidden_act_param": 0.01, "dim_model_base": 16, "scale_depth": 1.4,
  "scale_emb": 12})";
inline constexpr std::string_view kSparseLlama = R"({
  "architectures": ["SparseLlamaForCausalLM"], "model_type": "sparsellama", "vocab_size": 1000,
  "hidden_size": 64, "intermediate_size": 200, "num_hidden_layers": 5, "num_attention_heads": 4,
  "hidden_act": "relu"})";

// A patch is a JSON object of keys to set; the string "<remove>" removes one.
std::string patched(std::string_view base, std::string_view patch);

// What is read of a config.json and, if it is not empty, a generation_config.json.
ModelConfig read_config(std::string_view config, std::string_view generation = "");

struct BadPatch {
  const char* patch;
  const char* fragment;
};

// The message has the fragment, and names the file.
void expect_refused(std::string_view base, const BadPatch& bad);

}  // namespace sparsellm::testing
