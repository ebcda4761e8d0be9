#include "models/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/mapped_file.h"
#include "models/storage/safetensors.h"
#include "tests/models/config_files.h"
#include "tests/models/expect_error.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using namespace sparsellm::testing;
using nlohmann::json;
using Kind = Activation::Kind;

TEST(ModelConfig, OptDefaults) {
  const ModelConfig config = read_config(kOpt);
  EXPECT_EQ(config.architecture, "OPTForCausalLM");
  EXPECT_EQ(config.vocab_size, 1000);
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.intermediate_size, 256);
  EXPECT_EQ(config.num_layers, 3);
  EXPECT_EQ(config.num_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.max_positions, 2048);
  EXPECT_EQ(config.norm, ModelConfig::Norm::layer_norm);
  EXPECT_EQ(config.norm_epsilon, 1e-5f);
  EXPECT_EQ(config.positions, ModelConfig::Positions::learned);
  EXPECT_EQ(config.activation, Activation{Kind::relu});
  EXPECT_FALSE(config.gated_mlp);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_TRUE(config.attention_out_bias);
  EXPECT_TRUE(config.mlp_bias);
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ(config.bos_token_id, 2);
  EXPECT_EQ(config.eos_token_ids, std::vector<int32_t>{2});
}

TEST(ModelConfig, FileAlone) {
  const TempDir dir;
  const fs::path file = dir.write("tiny.json", kLlama);
  dir.write("generation_config.json", R"({"eos_token_id": 7})");
  const ModelConfig config = read_model_config_file(file);
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.eos_token_ids, std::vector<int32_t>{2});  // not that of the other file
  expect_message(error_of([&] { read_model_config_file(dir.path() / "no.json"); }), "no.json");
}

TEST(ModelConfig, LlamaDefaults) {
  const ModelConfig config = read_config(kLlama);
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.vocab_size, 1000);
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.intermediate_size, 200);
  EXPECT_EQ(config.num_layers, 3);
  EXPECT_EQ(config.num_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.max_positions, 2048);
  EXPECT_EQ(config.norm, ModelConfig::Norm::rms_norm);
  EXPECT_EQ(config.norm_epsilon, 1e-6f);
  EXPECT_EQ(config.positions, ModelConfig::Positions::rope);
  EXPECT_EQ(config.rope_theta, 10000.0f);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::none);
  EXPECT_EQ(config.rope_scaling.factor, 1.0f);
  EXPECT_EQ(config.activation, Activation{Kind::silu});
  EXPECT_TRUE(config.gated_mlp);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_FALSE(config.attention_out_bias);
  EXPECT_FALSE(config.mlp_bias);
  EXPECT_FALSE(config.tied_head);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.eos_token_ids, std::vector<int32_t>{2});
}

TEST(ModelConfig, NullIsAMissingKey) {
  const ModelConfig config = read_config(patched(kLlama, R"({
    "num_key_value_heads": null, "head_dim": null, "rope_scaling": null, "rope_parameters": null,
    "rope_theta": null, "rms_norm_eps": null, "sliding_window": null, "quantization_config": null,
    "attention_bias": null, "mlp_bias": null, "tie_word_embeddings": null,
    "max_position_embeddings": null, "partial_rotary_factor": null})"));
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.max_positions, 2048);
  EXPECT_FALSE(config.tied_head);
}

TEST(ModelConfig, ReadsWhatLlamaFilesSay) {
  const ModelConfig config = read_config(patched(kLlama, R"({
    "architectures": ["SparseLlamaForCausalLM", "Other"], "model_type": "sparsellama",
    "num_key_value_heads": 2, "head_dim": 24,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000,
    "attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true, "pretraining_tp": 2,
    "pad_token_id": -1, "partial_rotary_factor": 1.0, "unknown_key": [{"a": 1}]})"));
  EXPECT_EQ(config.architecture, "SparseLlamaForCausalLM");
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 24);
  EXPECT_EQ(config.max_positions, 131072);
  EXPECT_EQ(config.norm_epsilon, 1e-5f);
  EXPECT_EQ(config.rope_theta, 500000.0f);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_TRUE(config.attention_out_bias);
  EXPECT_TRUE(config.mlp_bias);
  EXPECT_TRUE(config.tied_head);
}

TEST(ModelConfig, AcceptsPrunedWeightsOfCompressedTensors) {
  for (const char* patch :
       {R"({"quantization_config": {"quant_method": "compressed-tensors"}})",
        R"({"quantization_config": {"quant_method": "compressed-tensors", "version": "0.9.4",
               "sparsity_config": {"format": "sparse-bitmask", "global_sparsity": 49.5,
               "ignore": ["lm_head"], "registry_requires_subclass": false,
               "sparsity_structure": "unstructured", "targets": ["Linear"]}}})",
        R"({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {},
               "format": "dense", "kv_cache_scheme": null, "transform_config": {},
               "quantization_status": "compressed", "sparsity_config": {}}})",
        R"({"quantization_config": {"quant_method": "compressed-tensors",
               "sparsity_config": {"format": "dense"}}})",
        R"({"sparsity_config": {"format": "sparse-bitmask"}})"}) {
    SCOPED_TRACE(patch);
    EXPECT_EQ(read_config(patched(kLlama, patch)).hidden_size, 64);
    EXPECT_EQ(read_config(patched(kOpt, patch)).architecture, "OPTForCausalLM");
  }
}

constexpr std::string_view kQuantized = R"({"quantization_config": {
  "quant_method": "compressed-tensors", "version": "0.12.2", "global_compression_ratio": null,
  "quantization_status": "compressed", "ignore": ["lm_head", "re:.*self_attn.*"],
  "format": "FORMAT", "kv_cache_scheme": KV_CACHE,
  "sparsity_config": {"format": "sparse-24-bitmask", "sparsity_structure": "2:4"},
  "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": INPUTS,
    "output_activations": null, "format": null, "weights": {
      "actorder": ORDER, "block_structure": null, "dynamic": false, "group_size": GROUP,
      "num_bits": BITS, "observer": "minmax", "observer_kwargs": {}, "strategy": STRATEGY,
      "symmetric": true, "type": "TYPE"}}}}})";

// The text with these words instead of those of a model with e4m3 weights.
std::string quantized(std::map<std::string, std::string> words) {
  words.merge(std::map<std::string, std::string>{{"FORMAT", "float-quantized"},
                                                 {"KV_CACHE", "null"},
                                                 {"INPUTS", "null"},
                                                 {"ORDER", "null"},
                                                 {"GROUP", "null"},
                                                 {"BITS", "8"},
                                                 {"STRATEGY", "\"channel\""},
                                                 {"TYPE", "float"}});
  std::string text(kQuantized);
  for (const auto& [word, value] : words) {
    text.replace(text.find(word), word.size(), value);
  }
  return text;
}

const std::map<std::string, std::string> kFourBits{{"FORMAT", "pack-quantized"},
                                                   {"BITS", "4"},
                                                   {"TYPE", "int"},
                                                   {"STRATEGY", "\"group\""},
                                                   {"GROUP", "128"}};

std::map<std::string, std::string> with(std::map<std::string, std::string> words,
                                        const std::string& word, const std::string& value) {
  words.insert_or_assign(word, value);
  return words;
}

TEST(ModelConfig, AcceptsQuantizedWeightsOfCompressedTensors) {
  const std::map<std::string, std::string> cases[] = {
      {},
      {{"STRATEGY", "\"tensor\""}},
      {{"STRATEGY", "null"}},
      {{"STRATEGY", "null"}, {"GROUP", "-1"}},
      {{"FORMAT", "naive-quantized"}},
      {{"FORMAT", "int-quantized"}, {"TYPE", "int"}},
      kFourBits,
      with(kFourBits, "GROUP", "32"),
      with(kFourBits, "GROUP", "64"),
      with(kFourBits, "STRATEGY", "null"),
      with(with(kFourBits, "STRATEGY", "\"channel\""), "GROUP", "null"),
      with(kFourBits, "ORDER", "\"static\""),
      with(kFourBits, "ORDER", "\"weight\""),
      with(kFourBits, "ORDER", "false"),
  };
  for (const auto& words : cases) {
    const std::string patch = quantized(words);
    SCOPED_TRACE(patch);
    const ModelConfig config = read_config(patched(kLlama, patch));
    EXPECT_TRUE(config.is_quantized);
    EXPECT_EQ(config.quantization_warning, "");
    EXPECT_TRUE(read_config(patched(kOpt, patch)).is_quantized);
  }
  EXPECT_FALSE(read_config(patched(kLlama, "{}")).is_quantized);
}

TEST(ModelConfig, WarnsOnceOfQuantizedActivations) {
  const std::string scheme = R"({"dynamic": true, "num_bits": 8, "strategy": "token"})";
  const std::map<std::string, std::string> cases[] = {
      {{"INPUTS", scheme}}, {{"KV_CACHE", scheme}}, {{"INPUTS", scheme}, {"KV_CACHE", scheme}}};
  for (const auto& words : cases) {
    const ModelConfig config = read_config(patched(kLlama, quantized(words)));
    EXPECT_EQ(config.warning, "");
    expect_message(config.quantization_warning,
                   "config.json: quantization_config: activations or the KV cache are to be "
                   "quantised, which is left out here");
  }
  EXPECT_TRUE(read_config(patched(kLlama, R"({"quantization_config": {"quant_method":
      "compressed-tensors", "kv_cache_scheme": {"num_bits": 8}}})"))
                  .is_quantized);
}

TEST(ModelConfig, RefusesQuantizedWeightsThatAreNotSupported) {
  struct Case {
    std::map<std::string, std::string> words;
    const char* fragment;
  };
  const Case cases[] = {
      {{{"FORMAT", "marlin-24"}}, R"(format is "marlin-24"; supported are dense, float-quantized)"},
      {{{"FORMAT", "nvfp4-pack-quantized"}}, R"(format is "nvfp4-pack-quantized"; supported)"},
      {{{"FORMAT", "mixed-precision"}}, R"(config_groups["group_0"].format is null)"},
      {{{"BITS", "4"}}, "num_bits is 4; supported are 8, and 4 in the format pack-quantized"},
      {{{"BITS", "16"}}, "num_bits is 16; supported are 8"},
      {{{"BITS", "\"8\""}}, "num_bits is \"8\""},
      {with(kFourBits, "BITS", "3"), "num_bits is 3; supported are 8, and 4"},
      {with(kFourBits, "BITS", "8"), "num_bits is 8; supported are 8, and 4"},
      {with(kFourBits, "TYPE", "float"), "type is \"float\"; of 4 bits supported is int"},
      {{{"TYPE", "posit"}}, "type is \"posit\"; supported are int, float"},
      {with(kFourBits, "GROUP", "16"), "group_size is 16; supported are 32, 64, 128"},
      {with(kFourBits, "GROUP", "48"), "group_size is 48; supported are 32, 64, 128"},
      {with(kFourBits, "GROUP", "null"), "group_size"},
      {with(kFourBits, "STRATEGY", "\"tensor\""), "strategy is \"tensor\"; supported are group"},
      {with(kFourBits, "STRATEGY", "\"tensor_group\""), "strategy is \"tensor_group\""},
      {with(kFourBits, "ORDER", "\"group\""), "actorder is \"group\"; groups in the order of"},
      {with(kFourBits, "ORDER", "\"dynamic\""), "actorder is \"dynamic\""},
      {with(kFourBits, "ORDER", "true"), "actorder is true"},
      {{{"STRATEGY", "\"block\""}}, "strategy is \"block\"; supported are tensor and channel"},
      {{{"STRATEGY", "\"group\""}, {"GROUP", "128"}}, "group_size is 128; scales of groups"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.fragment);
    const std::string patch = quantized(c.words);
    expect_refused(kLlama, {patch.c_str(), c.fragment});
    expect_refused(kOpt, {patch.c_str(), c.fragment});
  }
  const std::pair<const char*, const char*> edits[] = {
      {R"("symmetric": true=>"symmetric": false)", "symmetric is false; zero points"},
      {R"("block_structure": null=>"block_structure": [128, 128])", "scales of blocks"},
      {R"("dynamic": false=>"dynamic": true)", "dynamic is true"},
      {R"("dynamic": false=>"dynamic": "local")", "dynamic is \"local\""},
      {R"("format": null=>"format": "mxfp4-pack-quantized")",
       R"(config_groups["group_0"].format is "mxfp4)"},
      {R"("targets": ["Linear"], =>)", R"(config_groups["group_0"].targets is missing)"},
      {R"("ignore": ["lm_head", =>"ignore": [7, )", "ignore holds 7"},
      {R"("weights": {=>"weights": 8, "other": {)", "weights"},
  };
  for (const auto& [edit, fragment] : edits) {
    SCOPED_TRACE(edit);
    const std::string text = edit;
    const size_t arrow = text.find("=>");
    std::string patch = quantized({});
    patch.replace(patch.find(text.substr(0, arrow)), arrow, text.substr(arrow + 2));
    expect_refused(kLlama, {patch.c_str(), fragment});
  }
}

TEST(ModelConfig, AcceptsTheNameOfThisLibrary) {
  for (
      const char* patch :
      {R"({"quantization_config": {"library": "sparsellm", "version": 1, "formats": ["tca_bme"]}})",
       R"({"quantization_config": {"library": "sparsellm", "version": 1,
               "formats": ["tca_bme", "tiled_csl"]}})"}) {
    SCOPED_TRACE(patch);
    EXPECT_EQ(read_config(patched(kLlama, patch)).hidden_size, 64);
    EXPECT_EQ(read_config(patched(kOpt, patch)).architecture, "OPTForCausalLM");
  }
}

TEST(ModelConfig, Activations) {
  const std::pair<const char*, Activation> cases[] = {
      {R"("relu")", {Kind::relu}},
      {R"("gelu")", {Kind::gelu}},
      {R"("gelu_new")", {Kind::gelu_tanh}},
      {R"("gelu_pytorch_tanh")", {Kind::gelu_tanh}},
      {R"("silu")", {Kind::silu}},
      {R"("swish")", {Kind::silu}},
      {R"("relu", "hidden_act_param": 0.5)", {Kind::relu}},
      {R"("fatrelu", "hidden_act_param": 0)", {Kind::fatrelu, 0.0f}},
      {R"("fatrelu", "hidden_act_param": 0.01)", {Kind::fatrelu, 0.01f}}};
  for (const auto& [text, activation] : cases) {
    SCOPED_TRACE(text);
    const std::string value = text;
    EXPECT_EQ(read_config(patched(kLlama, R"({"hidden_act": )" + value + "}")).activation,
              activation);
    EXPECT_EQ(read_config(patched(kOpt, R"({"activation_function": )" + value + "}")).activation,
              activation);
  }
}

TEST(ModelConfig, RopeSpellings) {
  struct Case {
    const char* patch;
    float theta;
    RopeScaling scaling;
  };
  using Scaling = RopeScaling::Kind;
  const RopeScaling linear{.kind = Scaling::linear, .factor = 2.5f};
  const RopeScaling llama3{.kind = Scaling::llama3,
                           .factor = 8.0f,
                           .low_frequency_factor = 1.5f,
                           .high_frequency_factor = 5.0f,
                           .original_positions = 8192};
  const Case cases[] = {
      {R"({"rope_scaling": {"type": "linear", "factor": 2.5}})", 10000.0f, linear},
      {R"({"rope_scaling": {"rope_type": "linear", "factor": 2.5}})", 10000.0f, linear},
      {R"({"rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 2.5},
           "rope_theta": 5e5})",
       500000.0f, linear},
      {R"({"rope_scaling": {"type": "default"}})", 10000.0f, {}},
      {R"({"rope_scaling": {"type": "default", "factor": 1}})", 10000.0f, {}},
      {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1.5,
           "high_freq_factor": 5, "original_max_position_embeddings": 8192}})",
       10000.0f, llama3},
      {R"({"rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1.5,
           "high_freq_factor": 5, "original_max_position_embeddings": 8192,
           "rope_theta": 500000.0}})",
       500000.0f, llama3},
      {R"({"rope_parameters": {"rope_type": "default", "rope_theta": 12345.5}})", 12345.5f, {}},
      {R"({"rope_parameters": {"rope_theta": 20000}, "rope_theta": 20000.0})", 20000.0f, {}},
      {R"({"rope_parameters": {"rope_type": "default"}, "rope_theta": 20000})", 20000.0f, {}},
      {R"({"rope_parameters": {"partial_rotary_factor": 1.0}})", 10000.0f, {}},
      {R"({"rope_parameters": {}})", 10000.0f, {}},
      {R"({"rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 10000},
           "rope_scaling": {"type": "linear", "factor": 2.5}, "rope_theta": 10000.0})",
       10000.0f, linear},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.patch);
    const ModelConfig config = read_config(patched(kLlama, c.patch));
    EXPECT_EQ(config.rope_theta, c.theta);
    EXPECT_EQ(config.rope_scaling.kind, c.scaling.kind);
    EXPECT_EQ(config.rope_scaling.factor, c.scaling.factor);
    EXPECT_EQ(config.rope_scaling.low_frequency_factor, c.scaling.low_frequency_factor);
    EXPECT_EQ(config.rope_scaling.high_frequency_factor, c.scaling.high_frequency_factor);
    EXPECT_EQ(config.rope_scaling.original_positions, c.scaling.original_positions);
  }
}

TEST(ModelConfig, TokenIds) {
  struct Case {
    const char* patch;
    const char* generation;
    std::optional<int32_t> bos;
    std::vector<int32_t> eos;
  };
  const Case cases[] = {
      {R"({"bos_token_id": 0, "eos_token_id": 999})", "", 0, {999}},
      {R"({"bos_token_id": null, "eos_token_id": null})", "", {}, {}},
      {R"({"bos_token_id": -1, "eos_token_id": -1})", "", {}, {}},
      {R"({"eos_token_id": [5, 7, 9]})", "", 1, {5, 7, 9}},
      {R"({"eos_token_id": [5, -1]})", "", 1, {5}},
      {R"({"eos_token_id": []})", "", 1, {}},
      {"{}", R"({"eos_token_id": 8})", 1, {8}},
      {"{}", R"({"eos_token_id": [8, 9], "bos_token_id": 3})", 1, {8, 9}},
      {"{}", R"({"eos_token_id": null})", 1, {2}},
      {"{}", R"({"eos_token_id": -1})", 1, {2}},
      {"{}", R"({"eos_token_id": []})", 1, {2}},
      {"{}", "{}", 1, {2}},
      {R"({"eos_token_id": null})", R"({"eos_token_id": 8})", 1, {8}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(c.patch) + c.generation);
    const ModelConfig config = read_config(patched(kLlama, c.patch), c.generation);
    EXPECT_EQ(config.bos_token_id, c.bos);
    EXPECT_EQ(config.eos_token_ids, c.eos);
  }
}

// What is in a published file counts, not what its name promises.
TEST(ModelConfig, ArchitectureAndTypeGoTogether) {
  struct Case {
    const char* architecture;
    std::vector<const char*> types;  // JSON
  };
  const Case cases[] = {
      {"LlamaForCausalLM", {R"("llama")", "null", R"("<remove>")"}},
      {"OPTForCausalLM", {R"("opt")", "null", R"("<remove>")"}},
      {"SparseLlamaForCausalLM", {R"("sparsellama")", R"("llama_sparse_relu")"}},
      {"MistralForCausalLM", {R"("mistral")", "null", R"("<remove>")"}},
      {"Qwen2ForCausalLM", {R"("qwen2")", "null", R"("<remove>")"}},
      {"Qwen3ForCausalLM", {R"("qwen3")", "null", R"("<remove>")"}},
      {"BambooForCausalLM", {R"("bamboo")"}},
      {"MiniCPMForCausalLM", {R"("minicpm")"}},
  };
  const char* const types[] = {
      R"("llama")",     R"("opt")",    R"("sparsellama")", R"("llama_sparse_relu")",
      R"("minicpm")",   R"("LLAMA")",  R"("llama ")",      R"("")",
      R"("mistral\n")", "null",        R"("<remove>")",    R"("mistral")",
      R"("qwen2")",     R"("bamboo")", R"("qwen3")"};
  for (const Case& c : cases) {
    const std::string base =
        patched(std::string_view(c.architecture).starts_with("OPT") ? kOpt : kLlama,
                fmt::format(R"({{"architectures": ["{}"], "num_key_value_heads": 4,
                                 "hidden_act": "relu"}})",
                            c.architecture));
    for (const std::string_view type : types) {
      SCOPED_TRACE(fmt::format("{} {}", c.architecture, type));
      const std::string text = patched(base, fmt::format(R"({{"model_type": {}}})", type));
      if (std::find(c.types.begin(), c.types.end(), type) != c.types.end()) {
        const ModelConfig config = read_config(text);
        EXPECT_EQ(config.architecture, c.architecture);
        EXPECT_EQ(config.warning, "");
        continue;
      }
      const std::string message = error_of([&] { read_config(text); });
      expect_message(message, fmt::format(R"(architectures holds "{}")", c.architecture));
      const bool is_there = type != "null" && type != R"("<remove>")";
      expect_message(message, is_there ? fmt::format("with the model_type {}; supported", type)
                                       : "with no model_type; supported");
      EXPECT_EQ(message.find('\n'), std::string::npos);
    }
  }
}

struct ForeignCase {
  const char* key;
  std::vector<const char*> neutral;
  std::vector<const char*> foreign;
  std::vector<const char*> wrong;
};

// For 5 layers and heads of 16.
std::vector<ForeignCase> foreign_cases() {
  const std::vector<const char*> no_numbers{R"("1")", "true", "[1]", "{}", "1e300"};
  const std::vector<const char*> no_booleans{"0", "1", R"("false")", "[]", "{}"};
  const std::vector<const char*> ones{"null", "1", "1.0", "10e-1"};
  const std::vector<const char*> other{"12", "0.22", "0", "-1", "1.0001", "1e30"};
  return {
      {"scale_emb", ones, other, no_numbers},
      {"scale_depth",
       {"null", "2.2360679774997896", "2.236068"},
       {"1", "1.4", "2.2", "5", "-2.236068", "0"},
       no_numbers},
      {"residual_multiplier", ones, other, no_numbers},
      {"embedding_multiplier", ones, other, no_numbers},
      {"attention_multiplier",
       {"null", "0.25", "2.5e-1"},
       {"1", "1.0", "0.0078125", "0.0625", "-0.25", "0", "0.2501"},
       no_numbers},
      {"logits_scaling", ones, other, no_numbers},
      {"logit_scale", ones, other, no_numbers},
      {"rope_interleaved", {"null", "false"}, {"true"}, no_booleans},
      {"attn_logit_softcapping", {"null"}, {"50.0", "1", "0", "-1"}, no_numbers},
      {"final_logit_softcapping", {"null"}, {"30.0", "1", "0", "-1"}, no_numbers},
      {"clip_qkv", {"null"}, {"8", "1.0", "0"}, no_numbers},
      {"use_qk_norm", {"null", "false"}, {"true"}, no_booleans},
  };
}

TEST(ModelConfig, KeysOfOtherFamiliesAreRefusedOrReported) {
  const std::string llama = patched(kLlama, R"({"num_hidden_layers": 5})");
  const std::string opt = patched(kOpt, R"({"num_hidden_layers": 5})");
  for (const ForeignCase& c : foreign_cases()) {
    const auto with = [&](std::string_view base, const char* value) {
      return patched(base, fmt::format(R"({{"{}": {}}})", c.key, value));
    };
    for (const char* value : c.neutral) {
      SCOPED_TRACE(fmt::format("{}: {}", c.key, value));
      for (const std::string_view base :
           {std::string_view(llama), std::string_view(opt), kSparseLlama}) {
        EXPECT_EQ(read_config(with(base, value)).warning, "");
      }
    }
    for (const char* value : c.foreign) {
      SCOPED_TRACE(fmt::format("{}: {}", c.key, value));
      const std::string message = error_of([&] { read_config(with(kSparseLlama, value)); });
      expect_message(message, fmt::format("config.json: {} is ", c.key));
      expect_message(message, "; SparseLlamaForCausalLM is not supported with it");
      expect_message(read_config(with(llama, value)).warning,
                     fmt::format("config.json: LlamaForCausalLM of transformers ignores {}, and so "
                                 "does this engine",
                                 c.key));
      expect_message(read_config(with(opt, value)).warning,
                     fmt::format("OPTForCausalLM of transformers ignores {},", c.key));
    }
    for (const char* value : c.wrong) {
      SCOPED_TRACE(fmt::format("{}: {}", c.key, value));
      for (const std::string_view base :
           {std::string_view(llama), std::string_view(opt), kSparseLlama}) {
        const std::string message = error_of([&] { read_config(with(base, value)); });
        expect_message(message, fmt::format("config.json: {} is ", c.key));
        expect_message(message, "; expected ");
      }
    }
  }
}

// One line names them all, also code that comes with the checkpoint; that of ProSparse always does.
TEST(ModelConfig, OneWarningNamesAllIgnoredKeys) {
  constexpr const char* kKeys = R"({"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256,
    "use_qk_norm": true, "logit_scale": 1.0, "clip_qkv": null,
    "auto_map": {"AutoModelForCausalLM": "modeling_minicpm.MiniCPMForCausalLM"}})";
  for (const std::string_view base : {kLlama, kOpt}) {
    const std::string warning = read_config(patched(base, kKeys)).warning;
    expect_message(warning, " ignores scale_emb, scale_depth, use_qk_norm, auto_map, and so ");
    EXPECT_EQ(warning.find('\n'), std::string::npos);
  }
  constexpr const char* kCode = R"({"auto_map": {"AutoConfig": "configuration_x.Config"}})";
  expect_message(read_config(patched(kLlama, kCode)).warning, " ignores auto_map, and so ");
  EXPECT_EQ(read_config(patched(kSparseLlama, kCode)).warning, "");
  EXPECT_EQ(read_config(patched(kLlama, R"({"auto_map": null})")).warning, "");
}

TEST(ModelConfig, RefusesWhatNoFamilySupports) {
  const BadPatch cases[] = {
      {R"({"architectures": "<remove>"})", "architectures is missing"},
      {R"({"architectures": null})", "architectures is null; expected an array"},
      {R"({"architectures": []})", "architectures is empty"},
      {R"({"architectures": "OPTForCausalLM"})", "architectures is \"OPTForCausalLM\"; expected"},
      {R"({"architectures": [7]})", "architectures holds 7; expected strings"},
      {R"({"architectures": ["BertModel"]})",
       R"(architectures holds "BertModel", with no model_type; supported are )"
       "LlamaForCausalLM with llama or none, MistralForCausalLM with mistral or none, "
       "OPTForCausalLM with opt or none, Qwen2ForCausalLM with qwen2 or none, "
       "Qwen3ForCausalLM with qwen3 or none, "
       "BambooForCausalLM with bamboo, MiniCPMForCausalLM with minicpm, "
       "SparseLlamaForCausalLM with sparsellama, SparseLlamaForCausalLM with llama_sparse_relu"},
      {R"({"architectures": ["llamaforcausallm"]})", "supported are LlamaForCausalLM"},
      {R"({"architectures": ["BertModel"], "model_type": "llama"})",
       R"(architectures holds "BertModel", with the model_type "llama"; supported are)"},
      {R"({"model_type": 7})", "model_type is 7; expected a string"},
      {R"({"model_type": ["llama"]})", "model_type is an array; expected a string"},
      {R"({"model_type": false})", "model_type is false; expected a string"},
      {R"({"vocab_size": "<remove>"})", "vocab_size is missing"},
      {R"({"hidden_size": "<remove>"})", "hidden_size is missing"},
      {R"({"num_hidden_layers": "<remove>"})", "num_hidden_layers is missing"},
      {R"({"num_attention_heads": "<remove>"})", "num_attention_heads is missing"},
      {R"({"vocab_size": null})", "vocab_size is null"},
      {R"({"vocab_size": 0})", "vocab_size is 0; expected an integer from 1 to 2147483647"},
      {R"({"vocab_size": 2147483648})", "vocab_size is 2147483648"},
      {R"({"vocab_size": -32000})", "vocab_size is -32000"},
      {R"({"vocab_size": 1e3})", "vocab_size is 1000.0; expected an integer"},
      {R"({"vocab_size": "1000"})", "vocab_size is \"1000\""},
      {R"({"vocab_size": [1000]})", "vocab_size is an array"},
      {R"({"vocab_size": {}})", "vocab_size is an object"},
      {R"({"vocab_size": true})", "vocab_size is true"},
      {R"({"vocab_size": 18446744073709551615})", "vocab_size is 18446744073709551615"},
      {R"({"vocab_size": 98446744073709551615})", "vocab_size is 9.8446744"},
      {R"({"hidden_size": 0})", "hidden_size is 0"},
      {R"({"hidden_size": -64})", "hidden_size is -64"},
      {R"({"hidden_size": 16777217})", "hidden_size is 16777217"},
      {R"({"num_hidden_layers": 0})", "num_hidden_layers is 0"},
      {R"({"num_hidden_layers": 10001})", "num_hidden_layers is 10001"},
      {R"({"num_attention_heads": 0})", "num_attention_heads is 0"},
      {R"({"num_attention_heads": 65537})", "num_attention_heads is 65537"},
      {R"({"num_attention_heads": 3})",
       "hidden_size 64 is not a multiple of num_attention_heads 3"},
      {R"({"num_attention_heads": 16})", "the head size 4 is not supported; supported are"},
      {R"({"hidden_size": 2048})", "the head size 512 is not supported"},
      {R"({"max_position_embeddings": 0})", "max_position_embeddings is 0"},
      {R"({"max_position_embeddings": 2048.5})", "max_position_embeddings is 2048.5"},
      {R"({"max_position_embeddings": 2147483648})", "max_position_embeddings is 2147483648"},
      {R"({"quantization_config": {"quant_method": "gptq"}})",
       "quantization_config is an object; only weights in f32, f16 and bf16"},
      {R"({"quantization_config": false})", "quantization_config is false"},
      {R"({"quantization_config": {}})", "only weights in f32, f16 and bf16"},
      {R"({"quantization_config": {"quant_method": 1}})", "only weights in f32, f16 and bf16"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors",
           "format": "pack-quantized"}})",
       "quantization_config.format is \"pack-quantized\"; only weights in f32"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors",
           "format": "dense", "config_groups": {"group_0": {}}}})",
       R"(config_groups["group_0"].targets is missing)"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": []}})",
       "config_groups is an array"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors",
           "kv_cache_scheme": 8}})",
       "kv_cache_scheme is 8; expected an object"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors",
           "transform_config": {"config_groups": {}}}})",
       "transformed weights are not supported"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors",
           "sparsity_config": {"format": "marlin-24"}}})",
       "sparsity_config.format is \"marlin-24\"; supported are dense, sparse-bitmask"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors",
           "sparsity_config": {"targets": []}}})",
       "sparsity_config.format is"},
      {R"({"quantization_config": {"quant_method": "compressed-tensors",
           "sparsity_config": "sparse-bitmask"}})",
       "sparsity_config is"},
      {R"({"quantization_config": {"library": "sparsellm", "version": 2, "new": 1}})",
       "quantization_config.version is 2; 1 is the newest that this build reads"},
      {R"({"quantization_config": {"library": "sparsellm", "version": 0, "formats": ["tca_bme"]}})",
       "quantization_config.version is 0"},
      {R"({"quantization_config": {"library": "sparsellm", "version": "1"}})",
       "quantization_config.version is \"1\""},
      {R"({"quantization_config": {"library": "sparsellm", "formats": ["tca_bme"]}})",
       "quantization_config.version is missing"},
      {R"({"quantization_config": {"library": "sparsellm", "version": 1}})",
       "quantization_config.formats is missing"},
      {R"({"quantization_config": {"library": "sparsellm", "version": 1, "formats": []}})",
       "quantization_config.formats is an array; expected the names of sparse formats"},
      {R"({"quantization_config": {"library": "sparsellm", "version": 1, "formats": {}}})",
       "quantization_config.formats is an object"},
      {R"({"quantization_config": {"library": "sparsellm", "version": 1,
           "formats": ["tca_bme", "a\nb"]}})",
       "quantization_config.formats[1] is \"a\\nb\"; this build has no such sparse format"},
      {R"({"quantization_config": {"library": "sparsellm", "version": 1, "formats": ["dense"]}})",
       "quantization_config.formats[0] is \"dense\""},
      {R"({"quantization_config": {"library": "sparsellm", "version": 1, "formats": [7]}})",
       "quantization_config.formats holds 7; expected strings"},
      {R"({"quantization_config": {"library": "sparsellm", "version": 1, "formats": ["tca_bme"],
           "bits": 4}})",
       "bits"},
      {R"({"quantization_config": {"library": "sparsellm", "version": 1, "formats": ["tca_bme"],
           "quant_method": "gptq"}})",
       "quantization_config is an object; only weights in f32, f16 and bf16"},
      {R"({"quantization_config": {"library": "sparsellm", "version": 1, "formats": ["tca_bme"],
           "quant_method": "sparsellm"}})",
       "quantization_config is an object; only weights in f32, f16 and bf16"},
      {R"({"quantization_config": {"library": "sparsellm", "version": 1, "formats": ["tca_bme"],
           "quant_method": null}})",
       "quant_method"},
      {R"({"quantization_config": {"library": "other", "version": 1, "formats": ["tca_bme"]}})",
       "quantization_config is an object; only weights in f32, f16 and bf16"},
      {R"({"quantization_config": {"library": ["sparsellm"]}})",
       "quantization_config is an object; only weights in f32, f16 and bf16"},
      {R"({"quantization_config": "sparsellm"})", "quantization_config is \"sparsellm\""},
      {R"({"tie_word_embeddings": 1})", "tie_word_embeddings is 1; expected true or false"},
      {R"({"tie_word_embeddings": "true"})", "tie_word_embeddings is \"true\""},
      {R"({"bos_token_id": 1000})", "bos_token_id is 1000, but vocab_size is 1000"},
      {R"({"bos_token_id": [1]})", "bos_token_id is an array; expected one token id"},
      {R"({"bos_token_id": "<s>"})", "bos_token_id is \"<s>\""},
      {R"({"eos_token_id": 1000})", "eos_token_id is 1000, but vocab_size is 1000"},
      {R"({"eos_token_id": 2.0})", "eos_token_id is 2.0; expected an integer"},
      {R"({"eos_token_id": {}})", "eos_token_id is an object; expected an integer"},
      {R"({"eos_token_id": false})", "eos_token_id is false"},
      {R"({"eos_token_id": [2, 1000]})", "eos_token_id is 1000"},
      {R"({"eos_token_id": [2, "3"]})", "eos_token_id holds \"3\""},
      {R"({"eos_token_id": [2, null]})", "eos_token_id holds null"},
      {R"({"eos_token_id": [[2]]})", "eos_token_id holds an array"},
      {R"({"eos_token_id": 4294967298})", "eos_token_id is 4294967298; expected"},
  };
  for (const BadPatch& c : cases) {
    expect_refused(kOpt, c);
    expect_refused(kLlama, c);
  }
}

TEST(ModelConfig, RefusesUnsupportedOpt) {
  const BadPatch cases[] = {
      {R"({"ffn_dim": "<remove>"})", "ffn_dim is missing"},
      {R"({"ffn_dim": 0})", "ffn_dim is 0"},
      {R"({"ffn_dim": 16777217})", "ffn_dim is 16777217"},
      {R"({"activation_function": "<remove>"})", "activation_function is missing"},
      {R"({"activation_function": "mish"})",
       "activation_function is \"mish\"; supported are relu, gelu,"},
      {R"({"activation_function": 1})", "activation_function is 1; expected a string"},
      {R"({"do_layer_norm_before": false})", "do_layer_norm_before is false; only true"},
      {R"({"do_layer_norm_before": 1})", "do_layer_norm_before is 1; expected true or false"},
      {R"({"_remove_final_layer_norm": true})", "_remove_final_layer_norm is true; only false"},
      {R"({"layer_norm_elementwise_affine": false})", "layer_norm_elementwise_affine is false"},
      {R"({"enable_bias": false})", "enable_bias is false; only true is supported"},
      {R"({"word_embed_proj_dim": 32})", "word_embed_proj_dim is 32; only hidden_size, 64"},
      {R"({"word_embed_proj_dim": -64})", "word_embed_proj_dim is -64"},
      {R"({"word_embed_proj_dim": "64"})", "word_embed_proj_dim is \"64\""},
  };
  for (const BadPatch& c : cases) {
    expect_refused(kOpt, c);
  }
}

TEST(ModelConfig, RefusesUnsupportedLlama) {
  const BadPatch cases[] = {
      {R"({"intermediate_size": "<remove>"})", "intermediate_size is missing"},
      {R"({"intermediate_size": -1})", "intermediate_size is -1"},
      {R"({"intermediate_size": 16777217})", "intermediate_size is 16777217"},
      {R"({"hidden_act": "<remove>"})", "hidden_act is missing; expected a string"},
      {R"({"hidden_act": null})", "hidden_act is null"},
      {R"({"hidden_act": "quick_gelu"})", "hidden_act is \"quick_gelu\"; supported are relu"},
      {R"({"hidden_act": "ReLU"})", "hidden_act is \"ReLU\""},
      {R"({"hidden_act": ""})", "hidden_act is \"\""},
      {R"({"hidden_act": "fatrelu"})", "hidden_act_param is missing; expected a number"},
      {R"({"hidden_act": "fatrelu", "hidden_act_param": null})", "hidden_act_param is null"},
      {R"({"hidden_act": "fatrelu", "hidden_act_param": -0.01})", "hidden_act_param is -0.01"},
      {R"({"hidden_act": "fatrelu", "hidden_act_param": 1e300})", "hidden_act_param is 1e+300"},
      {R"({"hidden_act": "fatrelu", "hidden_act_param": "0.1"})", "hidden_act_param is \"0.1\""},
      {R"({"num_key_value_heads": 0})", "num_key_value_heads is 0"},
      {R"({"num_key_value_heads": 3})",
       "num_key_value_heads is 3; expected a divisor of num_attention_heads, 4"},
      {R"({"num_key_value_heads": 8})", "num_key_value_heads is 8"},
      {R"({"num_key_value_heads": true})", "num_key_value_heads is true"},
      {R"({"head_dim": 0})", "head_dim is 0"},
      {R"({"head_dim": 12})", "the head size 12 is not supported; supported are multiples of 8"},
      {R"({"head_dim": 264})", "the head size 264 is not supported"},
      {R"({"head_dim": -8})", "head_dim is -8"},
      {R"({"head_dim": 9223372036854775807})", "head_dim is 9223372036854775807"},
      {R"({"rms_norm_eps": 0})", "rms_norm_eps is 0; expected a number from"},
      {R"({"rms_norm_eps": -1e-6})", "rms_norm_eps is -1e-06"},
      {R"({"rms_norm_eps": 2})", "rms_norm_eps is 2"},
      {R"({"rms_norm_eps": "1e-6"})", "rms_norm_eps is \"1e-6\""},
      {R"({"rms_norm_eps": 1e-300})", "rms_norm_eps is 1e-300"},
      {R"({"attention_bias": 0})", "attention_bias is 0; expected true or false"},
      {R"({"mlp_bias": "no"})", "mlp_bias is \"no\""},
      {R"({"sliding_window": 4096})", "sliding_window is 4096; sliding windows are not supported"},
      {R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor is 0.5; only 1 is supported"},
      {R"({"rope_theta": 0})", "rope_theta is 0; expected a number"},
      {R"({"rope_theta": -10000.0})", "rope_theta is -10000.0"},
      {R"({"rope_theta": 1e300})", "rope_theta is 1e+300"},
      {R"({"rope_theta": "10000"})", "rope_theta is \"10000\""},
      {R"({"rope_theta": [10000]})", "rope_theta is an array"},
      {R"({"rope_scaling": "linear"})", "rope_scaling is \"linear\"; expected an object"},
      {R"({"rope_scaling": [1]})", "rope_scaling is an array; expected an object"},
      {R"({"rope_scaling": {"type": "dynamic", "factor": 2}})",
       "rope_scaling.type is \"dynamic\"; supported are default, linear and llama3"},
      {R"({"rope_scaling": {"rope_type": "yarn", "factor": 2}})",
       "rope_scaling.rope_type is \"yarn\"; supported are default, linear and llama3"},
      {R"({"rope_parameters": {"rope_type": "longrope", "factor": 2}})",
       "rope_parameters.rope_type is \"longrope\"; supported are"},
      {R"({"rope_scaling": {"rope_type": 3}})", "rope_scaling.rope_type is 3; expected a string"},
      {R"({"rope_scaling": {"rope_type": "linear", "type": "llama3", "factor": 2}})",
       "rope_scaling.type is \"llama3\"; but"},
      {R"({"rope_scaling": {"factor": 2}})",
       "rope_scaling.factor is 2; the default rope type has no factor"},
      {R"({"rope_scaling": {"type": "linear"}})", "rope_scaling.factor is missing"},
      {R"({"rope_scaling": {"type": "linear", "factor": null}})", "rope_scaling.factor is null"},
      {R"({"rope_scaling": {"type": "linear", "factor": 0}})", "rope_scaling.factor is 0"},
      {R"({"rope_scaling": {"type": "linear", "factor": -2}})", "rope_scaling.factor is -2"},
      {R"({"rope_scaling": {"type": "linear", "factor": "2"}})", "rope_scaling.factor is \"2\""},
      {R"({"rope_scaling": {"type": "linear", "factor": 2, "beta_fast": 32}})",
       "rope_scaling has the unknown key \"beta_fast\""},
      {R"({"rope_parameters": {"full_attention": {"rope_type": "default"}}})",
       "rope_parameters has the unknown key \"full_attention\""},
      {R"({"rope_parameters": {"partial_rotary_factor": 0.25}})",
       "rope_parameters.partial_rotary_factor is 0.25; only 1 is supported"},
      {R"({"rope_parameters": {"rope_theta": 10000}, "rope_theta": 500000})",
       "rope_parameters.rope_theta is 10000; but another rope_theta of the file is 500000"},
      {R"({"rope_parameters": {"rope_type": "default"},
           "rope_scaling": {"type": "linear", "factor": 2}})",
       "rope_parameters differs from rope_scaling"},
      {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "high_freq_factor": 4,
           "original_max_position_embeddings": 8192}})",
       "rope_scaling.low_freq_factor is missing"},
      {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
           "original_max_position_embeddings": 8192}})",
       "rope_scaling.high_freq_factor is missing"},
      {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
           "high_freq_factor": 4}})",
       "rope_scaling.original_max_position_embeddings is missing"},
      {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
           "high_freq_factor": 4, "original_max_position_embeddings": 8192}})",
       "rope_scaling: high_freq_factor 4 is not larger than low_freq_factor 4"},
      {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 0,
           "high_freq_factor": 4, "original_max_position_embeddings": 8192}})",
       "rope_scaling.low_freq_factor is 0"},
      {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
           "high_freq_factor": 4, "original_max_position_embeddings": 0}})",
       "rope_scaling.original_max_position_embeddings is 0"},
  };
  for (const BadPatch& c : cases) {
    expect_refused(kLlama, c);
  }
}

TEST(ModelConfig, RefusesTextThatIsNoConfig) {
  const std::string valid(kLlama);
  const std::string inner = valid.substr(1);
  const std::pair<std::string, const char*> cases[] = {
      {"", "invalid JSON at byte"},
      {"{", "invalid JSON at byte"},
      {"nonsense", "invalid JSON at byte"},
      {valid + "}", "invalid JSON at byte"},
      {valid + std::string(1, '\0') + "x", "invalid JSON at byte"},
      {"[" + valid + "]", "is an array; expected an object"},
      {"null", "is null; expected an object"},
      {"7", "is 7; expected an object"},
      {R"({"rms_norm_eps": NaN, )" + inner, "invalid JSON at byte"},
      {R"({"rope_theta": Infinity, )" + inner, "invalid JSON at byte"},
      {R"({"rope_theta": 1e999, )" + inner, "number out of range at byte"},
      {R"({"vocab_size": 7, )" + inner, "the key \"vocab_size\" is there twice"},
      {R"({"x": )" + std::string(100'000, '['), "nested more than 32 levels deep"},
      {R"({"x": ")" + std::string(2'000'000, 'x') + R"(", )" + inner, "at most 1048576 are read"},
  };
  for (const auto& [text, fragment] : cases) {
    SCOPED_TRACE(text.substr(0, 200));
    expect_message(error_of([&, &t = text] { read_config(t); }), fragment);
  }
  const TempDir empty;
  expect_message(error_of([&] { read_model_config(empty.path()); }), "config.json");
  expect_message(error_of([&] { read_model_config(empty.path() / "none"); }),
                 "none does not exist");
}

TEST(ModelConfig, RefusesBadGenerationEos) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"eos_token_id": 1000})", "eos_token_id is 1000, but vocab_size is 1000"},
      {R"({"eos_token_id": "2"})", "eos_token_id is \"2\""},
      {"[]", "is an array; expected an object"},
      {"null", "is null; expected an object"},
      {"{", "invalid JSON"},
  };
  for (const auto& [generation, fragment] : cases) {
    SCOPED_TRACE(generation);
    const std::string message = error_of([&, &g = generation] { read_config(kLlama, g); });
    expect_message(message, fragment);
    expect_message(message, "generation_config.json");
  }
}

void expect_sound(const ModelConfig& config) {
  for (int64_t size :
       {config.vocab_size, config.hidden_size, config.intermediate_size, config.num_layers,
        config.num_heads, config.num_kv_heads, config.head_dim, config.max_positions}) {
    EXPECT_GE(size, 1);
    EXPECT_LE(size, INT32_MAX);
  }
  EXPECT_EQ(config.num_heads % config.num_kv_heads, 0);
  EXPECT_EQ(config.head_dim % 8, 0);
  EXPECT_LE(config.head_dim, 256);
  EXPECT_GT(config.norm_epsilon, 0.0f);
  EXPECT_LE(config.norm_epsilon, 1.0f);
  EXPECT_GE(config.rope_theta, 1.0f);
  EXPECT_GE(config.rope_scaling.factor, 1.0f);
  EXPECT_GE(config.activation.threshold, 0.0f);
  EXPECT_NE(config.activation.kind, Kind::none);
  EXPECT_GE(config.window, 0);
  EXPECT_LT(config.window, config.max_positions);
  for (const float scale : {config.embedding_scale, config.residual_scale, config.logit_scale}) {
    EXPECT_GT(scale, 0.0f);
    EXPECT_LE(scale, 1e7f);
  }
  for (int32_t id : config.eos_token_ids) {
    EXPECT_GE(id, 0);
    EXPECT_LT(id, config.vocab_size);
  }
}

// Whatever the text is, the config is sound or an Error.
TEST(ModelConfig, SurvivesRandomMutations) {
  constexpr unsigned kSeed = 20240608;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const auto below = [&](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
  };
  constexpr std::string_view kSnippets[] = {"-",    "0",  "9",    "[",   "]",
                                            "{",    "}",  ",",    "\"",  "1e9",
                                            "null", ".5", "true", "e38", "99999999999999999999"};
  const std::string opt = patched(kOpt, R"({"eos_token_id": [2, 3], "word_embed_proj_dim": 64,
    "do_layer_norm_before": true, "tie_word_embeddings": false})");
  const std::string llama = patched(kLlama, R"({"hidden_act": "fatrelu", "hidden_act_param": 0.25,
    "num_key_value_heads": 2, "head_dim": 32, "eos_token_id": 7, "rms_norm_eps": 1e-5,
    "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1.5,
    "high_freq_factor": 5, "original_max_position_embeddings": 8192}})");
  const std::string sparse_llama =
      patched(kSparseLlama, R"({"scale_emb": 1, "scale_depth": 2.236068,
    "attention_multiplier": 0.25, "use_qk_norm": false, "clip_qkv": null, "auto_map": {}})");
  const std::string mistral = patched(kMistral, R"({"sliding_window": 512, "head_dim": 32})");
  const std::string qwen2 = patched(kQwen2, R"({"use_sliding_window": true, "sliding_window": 32768,
    "max_window_layers": 2, "layer_types": ["full_attention", "sliding_attention"]})");
  const std::vector<std::string> configs{opt,     llama, sparse_llama,
                                         mistral, qwen2, std::string(kMiniCpm)};
  const std::string generation =
      R"({"do_sample": true, "temperature": 0.6, "top_k": 50, "top_p": 0.9, "min_p": 0.05})";
  const auto mutate = [&](std::string text) {
    for (size_t edits = 1 + below(3); edits > 0; --edits) {
      const size_t at = below(text.size());
      switch (below(4)) {
        case 0:
          text[at] = static_cast<char>(below(256));
          break;
        case 1:
          text.insert(at, kSnippets[below(std::size(kSnippets))]);
          break;
        case 2:
          text.erase(at, 1 + below(4));
          break;
        default:
          text[at] = static_cast<char>('0' + below(10));
          break;
      }
    }
    return text;
  };

  const TempDir dir;
  int loaded = 0;
  for (int i = 0; i < 4000; ++i) {
    dir.write("config.json", mutate(configs[static_cast<size_t>(i) % configs.size()]));
    dir.write("generation_config.json", mutate(generation));
    const std::string model_error = error_of([&] {
      expect_sound(read_model_config(dir.path()));
      ++loaded;
    });
    const std::string generation_error = error_of([&] {
      const GenerationDefaults defaults = read_generation_defaults(dir.path());
      EXPECT_GE(defaults.temperature.value_or(0.0f), 0.0f);
      EXPECT_GT(defaults.top_p.value_or(1.0f), 0.0f);
      EXPECT_LE(defaults.top_p.value_or(1.0f), 1.0f);
    });
    for (const std::string& message : {model_error, generation_error}) {
      if (!message.empty()) {
        expect_message(message, "config.json");
      }
    }
  }
  EXPECT_GT(loaded, 0);
}

TEST(ModelConfig, ReadsTheDemoModels) {
  const ModelConfig llama = read_model_config(testing::data("models/fable-llama-relu-8m"));
  expect_sound(llama);
  EXPECT_EQ(llama.architecture, "LlamaForCausalLM");
  EXPECT_EQ(llama.vocab_size, 4096);
  EXPECT_EQ(llama.hidden_size, 256);
  EXPECT_EQ(llama.intermediate_size, 768);
  EXPECT_EQ(llama.num_layers, 8);
  EXPECT_EQ(llama.head_dim, 64);
  EXPECT_EQ(llama.max_positions, 1024);
  EXPECT_EQ(llama.activation, Activation{Kind::relu});
  EXPECT_TRUE(llama.tied_head);
  EXPECT_EQ(llama.bos_token_id, 1);

  const ModelConfig opt = read_model_config(testing::data("models/fable-opt-8m"));
  expect_sound(opt);
  EXPECT_EQ(llama.warning, "");
  EXPECT_EQ(opt.warning, "");
  EXPECT_EQ(opt.architecture, "OPTForCausalLM");
  EXPECT_EQ(opt.intermediate_size, 1024);
  EXPECT_EQ(opt.max_positions, 512);
  EXPECT_EQ(opt.bos_token_id, 2);
}

// The config of a tiny checkpoint agrees with its weights: one token embedding of the right shape.
TEST(ModelConfig, ReadsTheTinyCheckpoints) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(testing::data("tiny"))) {
    SCOPED_TRACE(entry.path());
    const ModelConfig config = read_model_config(entry.path());
    expect_sound(config);
    EXPECT_EQ(config.warning.empty(), entry.path().filename() != "llama_sparse_relu");
    read_generation_defaults(entry.path());
    const Checkpoint checkpoint(entry.path());
    int embeddings = 0;
    for (const std::string& name : checkpoint.names()) {
      const StoredTensor& tensor = *checkpoint.find(name);
      tensor.float_dtype(name);
      if (name.ends_with("embed_tokens.weight")) {
        ++embeddings;
        EXPECT_EQ(tensor.shape, (std::vector<int64_t>{config.vocab_size, config.hidden_size}));
      }
    }
    EXPECT_EQ(embeddings, 1);
    ++count;
  }
  EXPECT_GT(count, 0);
}

}  // namespace
}  // namespace sparsellm
