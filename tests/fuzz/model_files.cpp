#include "tests/fuzz/model_files.h"

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <utility>

#include "engine/conversion/convert.h"
#include "kernels/base/dtype.h"
#include "kernels/base/mapped_file.h"
#include "tests/models/storage/write_safetensors.h"
#include "tests/testing/temp_dir.h"
#include "tokenizer/byte_alphabet.h"

namespace sparsellm::fuzz {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::TestTensor;

constexpr int64_t kHidden = 16;
constexpr int64_t kInner = 24;
constexpr int64_t kKvRows = 8;
constexpr int64_t kVocabulary = 40;
constexpr int64_t kPositions = 64;
constexpr int kBlocks = 2;

// f16, bf16 or f32 values from -1/4 to 1/4; every other one is zero if `sparse`.
class RandomTensors {
 public:
  RandomTensors(DType dtype, bool sparse) : dtype_(dtype), sparse_(sparse) {}

  void add(const std::string& name, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (int64_t size : shape) {
      count *= size;
    }
    TestTensor tensor{.name = name,
                      .dtype = dtype_ == DType::f32    ? "F32"
                               : dtype_ == DType::bf16 ? "BF16"
                                                       : "F16",
                      .shape = std::move(shape),
                      .bytes = {}};
    visit_float(dtype_, [&]<class T>(T) {
      for (int64_t i = 0; i < count; ++i) {
        const auto drawn = static_cast<int>(random_() % 64) - 32;
        const T value =
            from_float<T>(sparse_ && i % 2 == 0 ? 0.0f : static_cast<float>(drawn) / 128.0f);
        char bytes[sizeof(T)];
        std::memcpy(bytes, &value, sizeof(T));
        tensor.bytes.append(bytes, sizeof(T));
      }
    });
    tensors_.push_back(std::move(tensor));
  }

  const std::vector<TestTensor>& all() const { return tensors_; }

 private:
  DType dtype_;
  bool sparse_;
  std::mt19937 random_{7};
  std::vector<TestTensor> tensors_;
};

json common_config() {
  return {{"hidden_size", kHidden},   {"num_hidden_layers", kBlocks},
          {"num_attention_heads", 2}, {"max_position_embeddings", kPositions},
          {"bos_token_id", 0},        {"eos_token_id", 1},
          {"vocab_size", kVocabulary}};
}

std::string llama_config(const char* dtype) {
  json config = common_config();
  config.update({{"architectures", {"LlamaForCausalLM"}},
                 {"model_type", "llama"},
                 {"hidden_act", "silu"},
                 {"intermediate_size", kInner},
                 {"num_key_value_heads", 1},
                 {"rms_norm_eps", 1e-5},
                 {"rope_theta", 10000.0},
                 {"tie_word_embeddings", false},
                 {"torch_dtype", dtype}});
  return config.dump(1);
}

std::vector<TestTensor> llama_tensors(DType dtype, bool sparse) {
  RandomTensors tensors(dtype, sparse);
  tensors.add("model.embed_tokens.weight", {kVocabulary, kHidden});
  for (int block = 0; block < kBlocks; ++block) {
    const std::string prefix = "model.layers." + std::to_string(block) + ".";
    tensors.add(prefix + "input_layernorm.weight", {kHidden});
    tensors.add(prefix + "self_attn.q_proj.weight", {kHidden, kHidden});
    tensors.add(prefix + "self_attn.k_proj.weight", {kKvRows, kHidden});
    tensors.add(prefix + "self_attn.v_proj.weight", {kKvRows, kHidden});
    tensors.add(prefix + "self_attn.o_proj.weight", {kHidden, kHidden});
    tensors.add(prefix + "post_attention_layernorm.weight", {kHidden});
    tensors.add(prefix + "mlp.gate_proj.weight", {kInner, kHidden});
    tensors.add(prefix + "mlp.up_proj.weight", {kInner, kHidden});
    tensors.add(prefix + "mlp.down_proj.weight", {kHidden, kInner});
  }
  tensors.add("model.norm.weight", {kHidden});
  tensors.add("lm_head.weight", {kVocabulary, kHidden});
  return tensors.all();
}

std::string opt_config() {
  json config = common_config();
  config.update({{"architectures", {"OPTForCausalLM"}},
                 {"model_type", "opt"},
                 {"activation_function", "relu"},
                 {"ffn_dim", kInner},
                 {"tie_word_embeddings", true},
                 {"torch_dtype", "float32"}});
  return config.dump(1);
}

std::vector<TestTensor> opt_tensors() {
  RandomTensors tensors(DType::f32, false);
  const auto add_both = [&](const std::string& module, std::vector<int64_t> shape) {
    tensors.add(module + ".weight", shape);
    tensors.add(module + ".bias", {shape.front()});
  };
  tensors.add("model.decoder.embed_tokens.weight", {kVocabulary, kHidden});
  tensors.add("model.decoder.embed_positions.weight", {kPositions + 2, kHidden});
  for (int block = 0; block < kBlocks; ++block) {
    const std::string prefix = "model.decoder.layers." + std::to_string(block) + ".";
    for (const char* name : {"q_proj", "k_proj", "v_proj", "out_proj"}) {
      add_both(prefix + "self_attn." + name, {kHidden, kHidden});
    }
    add_both(prefix + "self_attn_layer_norm", {kHidden});
    add_both(prefix + "fc1", {kInner, kHidden});
    add_both(prefix + "fc2", {kHidden, kInner});
    add_both(prefix + "final_layer_norm", {kHidden});
  }
  add_both("model.decoder.final_layer_norm", {kHidden});
  return tensors.all();
}

// <s>, </s>, the letters, the space, and some merges.
json vocabulary(std::vector<std::pair<std::string, std::string>>& merges) {
  json ids = json::object();
  const auto add = [&](const std::string& token) { ids[token] = ids.size(); };
  add("<s>");
  add("</s>");
  for (char letter = 'a'; letter <= 'z'; ++letter) {
    add(std::string(1, letter));
  }
  const std::string space = byte_symbol(' ');
  add(space);
  merges = {{"o", "n"}, {"c", "e"}, {"on", "ce"}, {space, "u"}};
  for (const auto& [left, right] : merges) {
    add(left + right);
  }
  return ids;
}

std::string tokenizer_json() {
  std::vector<std::pair<std::string, std::string>> pairs;
  const json vocab = vocabulary(pairs);
  json merges = json::array();
  for (const auto& [left, right] : pairs) {
    merges.push_back(left + " " + right);
  }
  json added = json::array();
  for (const char* token : {"<s>", "</s>"}) {
    added.push_back({{"id", vocab[token]},
                     {"content", token},
                     {"special", true},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false}});
  }
  return json{
      {"added_tokens", added},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}}
      .dump();
}

constexpr char kTokenizerConfig[] = R"({"bos_token": "<s>", "eos_token": "</s>"})";

ModelFiles llama(DType dtype, const char* name, bool sparse) {
  return {{"config.json", llama_config(name)},
          {"generation_config.json", R"({"do_sample": true, "temperature": 0.7, "top_k": 5})"},
          {"tokenizer.json", tokenizer_json()},
          {"tokenizer_config.json", kTokenizerConfig},
          {"model.safetensors", testing::write_safetensors(llama_tensors(dtype, sparse))}};
}

ModelFiles sharded_llama() {
  std::vector<TestTensor> tensors = llama_tensors(DType::bf16, false);
  const size_t half = tensors.size() / 2;
  json map = json::object();
  ModelFiles files = {{"config.json", llama_config("bfloat16")},
                      {"tokenizer_config.json", kTokenizerConfig},
                      {"special_tokens_map.json", kTokenizerConfig}};
  for (int shard = 0; shard < 2; ++shard) {
    const std::string name = "model-0000" + std::to_string(shard + 1) + "-of-00002.safetensors";
    const auto part = std::span(tensors).subspan(shard == 0 ? 0 : half,
                                                 shard == 0 ? half : tensors.size() - half);
    for (const TestTensor& tensor : part) {
      map[tensor.name] = name;
    }
    files[name] = testing::write_safetensors(part, {{"format", "pt"}});
  }
  files["model.safetensors.index.json"] = json{{"weight_map", map}}.dump();
  std::vector<std::pair<std::string, std::string>> merges;
  files["vocab.json"] = vocabulary(merges).dump();
  std::string lines = "#version: 0.2\n";
  for (const auto& [left, right] : merges) {
    lines += left + " " + right + "\n";
  }
  files["merges.txt"] = lines;
  return files;
}

// As compressed-tensors stores the weights of linear layers.
ModelFiles bitmasks() {
  std::vector<TestTensor> tensors;
  for (const TestTensor& dense : llama_tensors(DType::f16, true)) {
    if (dense.shape.size() != 2 || !dense.name.starts_with("model.layers.")) {
      tensors.push_back(dense);
      continue;
    }
    const int64_t columns = dense.shape[1];
    std::string mask(static_cast<size_t>(dense.shape[0] * (columns / 8)), '\0');
    std::string values;
    for (size_t i = 0; i < dense.bytes.size() / 2; ++i) {
      const std::string value = dense.bytes.substr(2 * i, 2);
      if (value != std::string(2, '\0')) {
        values += value;
        mask[i / 8] = static_cast<char>(mask[i / 8] | 1 << i % 8);
      }
    }
    tensors.push_back({dense.name + ".shape", "I64", {2}, testing::bytes_of(dense.shape)});
    tensors.push_back({dense.name + ".bitmask", "U8", {dense.shape[0], columns / 8}, mask});
    tensors.push_back(
        {dense.name + ".compressed", "F16", {static_cast<int64_t>(values.size() / 2)}, values});
  }
  ModelFiles files = llama(DType::f16, "float16", true);
  json config = json::parse(files["config.json"]);
  config["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                   {"sparsity_config", {{"format", "sparse-bitmask"}}}};
  files["config.json"] = config.dump(1);
  files["model.safetensors"] = testing::write_safetensors(tensors);
  return files;
}

// The data begins at an odd place.
std::string not_aligned(const std::vector<TestTensor>& tensors) {
  const std::string file = testing::write_safetensors(tensors);
  const bool is_odd = static_cast<unsigned char>(file.front()) % 2 == 1;  // bytes of the header
  return is_odd ? file : testing::write_safetensors(tensors, {}, 1);
}

ModelFiles opt() {
  return {{"config.json", opt_config()},
          {"tokenizer.json", tokenizer_json()},
          {"tokenizer_config.json", kTokenizerConfig},
          {"LICENSE", "as you like it\n"},
          {"model.safetensors", not_aligned(opt_tensors())}};
}

ModelFiles converted(const ModelFiles& from, const std::string& format, int64_t max_shard_bytes) {
  const testing::TempDir folder;
  for (const auto& [name, bytes] : from) {
    folder.write(fs::path("input") / name, bytes);
  }
  const fs::path output = folder.path() / "output";
  convert_model({.input = folder.path() / "input",
                 .output = output,
                 .plan = SparsityPlan::uniform({}, format),
                 .threads = 1,
                 .max_shard_bytes = max_shard_bytes,
                 .model_card = [](const Conversion&) { return std::string("# A model\n"); }});
  ModelFiles files;
  for (const auto& entry : fs::directory_iterator(output)) {
    files[entry.path().filename().string()] =
        read_text_file(entry.path(), std::numeric_limits<int64_t>::max());
  }
  return files;
}

std::vector<ModelFiles> make_bases() {
  constexpr int64_t kOneFile = 1 << 30;
  constexpr int64_t kShardBytes = 4000;
  const ModelFiles sparse = llama(DType::f16, "float16", true);
  return {llama(DType::f16, "float16", false),
          sharded_llama(),
          opt(),
          converted(sparse, "tca_bme", kOneFile),
          converted(sparse, "tca_bme", kShardBytes),
          converted(sparse, "smallest", kOneFile),
          bitmasks()};
}

}  // namespace

const std::vector<ModelFiles>& model_bases() {
  static const std::vector<ModelFiles> bases = make_bases();
  return bases;
}

}  // namespace sparsellm::fuzz
