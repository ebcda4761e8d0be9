// Readers of the families that have Llama's layers.

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "models/config.h"
#include "tests/models/config_files.h"
#include "tests/models/expect_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using Kind = Activation::Kind;

// It says "silu" and computes ReLU.
TEST(ModelConfig, SparseReluLlamaHasReluWhateverItsFileSays) {
  constexpr const char* kArchitecture =
      R"({"architectures": ["SparseLlamaForCausalLM"], "model_type": "llama_sparse_relu"})";
  const std::string base = patched(kLlama, kArchitecture);
  const ModelConfig config = read_config(base);
  EXPECT_EQ(config.activation, Activation{Kind::relu});
  expect_message(config.warning, R"(config.json: hidden_act is "silu", but the code of model_type )"
                                 "llama_sparse_relu computes ReLU: so does this engine");
  const ModelConfig relu = read_config(patched(base, R"({"hidden_act": "relu"})"));
  EXPECT_EQ(relu.activation, Activation{Kind::relu});
  EXPECT_EQ(relu.warning, "");
  expect_refused(base, {R"({"hidden_act": "gelu"})", "have relu, and silu in their files"});
}

TEST(ModelConfig, Mistral) {
  const ModelConfig config = read_config(kMistral);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.max_positions, 131072);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_FALSE(config.attention_out_bias);
  EXPECT_FALSE(config.tied_head);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.eos_token_ids, std::vector<int32_t>{2});
  expect_refused(kMistral, {R"({"num_key_value_heads": "<remove>"})", "num_key_value_heads"});
}

TEST(ModelConfig, WindowsOfMistral) {
  struct Case {
    const char* patch;
    int64_t window;
  };
  const Case cases[] = {
      {R"({"sliding_window": null})", 0},
      {R"({"sliding_window": 4096})", 4096},
      {R"({"sliding_window": "<remove>"})", 4096},
      {R"({"sliding_window": 131071})", 131071},
      {R"({"sliding_window": 131072})", 0},  // all that there may be
      {R"({"sliding_window": 8, "max_position_embeddings": 8})", 0},
      {R"({"sliding_window": 1, "max_position_embeddings": 8})", 1},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.patch);
    EXPECT_EQ(read_config(patched(kMistral, c.patch)).window, c.window);
  }
  for (const char* patch : {R"({"sliding_window": 0})", R"({"sliding_window": -1})",
                            R"({"sliding_window": "4096"})", R"({"sliding_window": 1.5})"}) {
    expect_refused(kMistral, {patch, "sliding_window is "});
  }
}

TEST(ModelConfig, Qwen2) {
  const ModelConfig config = read_config(kQwen2);
  EXPECT_EQ(config.max_positions, 32768);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.attention_out_bias);
  EXPECT_FALSE(config.tied_head);
  EXPECT_EQ(config.bos_token_id, std::nullopt);
  EXPECT_EQ(config.eos_token_ids, std::vector<int32_t>{});
  EXPECT_EQ(config.window, 0);
  EXPECT_TRUE(read_config(patched(kQwen2, R"({"tie_word_embeddings": true})")).tied_head);
}

TEST(ModelConfig, Qwen3) {
  const std::string base =
      patched(kQwen2, R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"})");
  const ModelConfig config = read_config(base);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_EQ(config.head_dim, 128);  // whatever the hidden size is
  EXPECT_EQ(config.norm_epsilon, 1e-6f);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_FALSE(config.attention_out_bias);
  EXPECT_FALSE(read_config(kQwen2).qk_norm);
  const ModelConfig other =
      read_config(patched(base, R"({"head_dim": 64, "attention_bias": true})"));
  EXPECT_EQ(other.head_dim, 64);
  EXPECT_TRUE(other.qkv_bias);
  EXPECT_TRUE(other.attention_out_bias);
  expect_refused(base, {R"({"head_dim": 12})", "the head size 12 is not supported"});
}

TEST(ModelConfig, WindowsOfQwen2) {
  for (const char* patch :
       {R"({"sliding_window": 8})", R"({"use_sliding_window": false, "sliding_window": 8})",
        R"({"use_sliding_window": true, "sliding_window": null})",
        R"({"use_sliding_window": true, "sliding_window": 32768, "max_window_layers": 0})",
        R"({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 3})",
        R"({"use_sliding_window": true, "sliding_window": 8})",  // from layer 28 on
        R"({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 0,
            "layer_types": ["full_attention", "full_attention", "full_attention"]})"}) {
    SCOPED_TRACE(patch);
    EXPECT_EQ(read_config(patched(kQwen2, patch)).window, 0);
  }
  const std::string qwen3 =
      patched(kQwen2, R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"})");
  for (const char* patch :
       {R"({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2})",
        R"({"use_sliding_window": true, "sliding_window": 32767, "max_window_layers": 0})",
        R"({"use_sliding_window": true, "max_window_layers": 0})",
        R"({"use_sliding_window": true, "sliding_window": 8,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"]})"}) {
    expect_refused(kQwen2, {patch, "with use_sliding_window; supported are windows of at least"});
    expect_refused(qwen3, {patch, "with use_sliding_window; supported are windows of at least"});
  }
}

TEST(ModelConfig, Bamboo) {
  const std::string base = patched(kMistral, R"({
    "architectures": ["BambooForCausalLM"], "model_type": "bamboo", "hidden_act": "relu",
    "auto_map": {"AutoConfig": "configuration_bamboo.BambooConfig"}})");
  const ModelConfig config = read_config(base);
  EXPECT_TRUE(config.relu_up);
  EXPECT_EQ(config.activation, Activation{Kind::relu});
  EXPECT_EQ(config.warning, "");
  EXPECT_FALSE(read_config(kMistral).relu_up);
  EXPECT_EQ(read_config(patched(base, R"({"sliding_window": 4096})")).window, 4096);
  expect_refused(base, {R"({"hidden_act": "silu"})", "hidden_act is \"silu\"; only relu is"});
}

TEST(ModelConfig, MiniCpm) {
  const ModelConfig config = read_config(kMiniCpm);
  EXPECT_EQ(config.embedding_scale, 12.0f);
  EXPECT_FLOAT_EQ(config.residual_scale, 0.7f);
  EXPECT_EQ(config.logit_scale, 0.25f);
  EXPECT_EQ(config.activation, (Activation{Kind::fatrelu, 0.01f}));
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ(config.warning, "");
  const ModelConfig plain = read_config(patched(kMiniCpm, R"({
    "dim_model_base": "<remove>", "scale_depth": "<remove>", "scale_emb": "<remove>",
    "tie_word_embeddings": false})"));
  EXPECT_EQ(plain.embedding_scale, 1.0f);
  EXPECT_EQ(plain.residual_scale, 0.5f);
  EXPECT_EQ(plain.logit_scale, 1.0f / 64.0f);
  EXPECT_FALSE(plain.tied_head);
  const ModelConfig llama = read_config(kLlama);
  EXPECT_EQ(llama.embedding_scale, 1.0f);
  EXPECT_EQ(llama.residual_scale, 1.0f);
  EXPECT_EQ(llama.logit_scale, 1.0f);
  for (const char* key : {"scale_emb", "scale_depth", "dim_model_base"}) {
    for (const char* value : {"0", "-1", "true", R"("1")", "1e300", "[1]"}) {
      const std::string patch = fmt::format(R"({{"{}": {}}})", key, value);
      expect_refused(kMiniCpm, {patch.c_str(), key});
    }
  }
  expect_refused(
      kMiniCpm, {R"({"residual_multiplier": 0.5})", "MiniCPMForCausalLM is not supported with it"});
  expect_refused(kMiniCpm, {R"({"rope_scaling": {"type": "dynamic", "factor": 2}})", "dynamic"});
}

}  // namespace
}  // namespace sparsellm
