#include "tests/tools/synthetic_model.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace sparsellm::testing {
namespace {

constexpr int64_t kVocabulary = 300;
constexpr int64_t kHeads = 2;
constexpr int64_t kKvHeads = 1;

struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
};

std::vector<NamedShape> tensors_of(const SyntheticModel& model) {
  std::vector<NamedShape> tensors{{"model.embed_tokens.weight", {kVocabulary, model.hidden}},
                                  {"model.norm.weight", {model.hidden}}};
  for (int64_t block = 0; block < model.blocks; ++block) {
    const std::string prefix = "model.layers." + std::to_string(block) + ".";
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
      tensors.push_back({prefix + name + ".weight", std::move(shape)});
    };
    add("input_layernorm", {model.hidden});
    add("self_attn.q_proj", {kHeads * model.head_dim, model.hidden});
    add("self_attn.k_proj", {kKvHeads * model.head_dim, model.hidden});
    add("self_attn.v_proj", {kKvHeads * model.head_dim, model.hidden});
    add("self_attn.o_proj", {model.hidden, kHeads * model.head_dim});
    add("post_attention_layernorm", {model.hidden});
    add("mlp.gate_proj", {model.intermediate, model.hidden});
    add("mlp.up_proj", {model.intermediate, model.hidden});
    add("mlp.down_proj", {model.hidden, model.intermediate});
  }
  return tensors;
}

int64_t elements(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t size : shape) {
    count *= size;
  }
  return count;
}

nlohmann::json config_of(const SyntheticModel& model) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_act", "silu"},
          {"hidden_size", model.hidden},
          {"intermediate_size", model.intermediate},
          {"num_hidden_layers", model.blocks},
          {"num_attention_heads", kHeads},
          {"num_key_value_heads", kKvHeads},
          {"head_dim", model.head_dim},
          {"max_position_embeddings", 128},
          {"rms_norm_eps", 1e-5},
          {"tie_word_embeddings", true},
          {"torch_dtype", "float16"},
          {"vocab_size", kVocabulary}};
}

// f16 with magnitudes from 2^-6 to 2^-4, or zero.
std::vector<uint16_t> random_values(int64_t count, double density, std::mt19937_64& random) {
  const auto kept = static_cast<uint64_t>(density * 65536.0);
  std::vector<uint16_t> values(static_cast<size_t>(count));
  for (uint16_t& value : values) {
    const uint64_t bits = random();
    value = (bits >> 32 & 0xffffu) < kept ? static_cast<uint16_t>((bits & 0x87ffu) | 0x2400u) : 0;
  }
  return values;
}

}  // namespace

void write_synthetic_model(const std::filesystem::path& directory, const SyntheticModel& model) {
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "config.json") << config_of(model).dump(1);
  const std::vector<NamedShape> tensors = tensors_of(model);
  nlohmann::json header;
  int64_t offset = 0;
  for (const NamedShape& tensor : tensors) {
    const int64_t end = offset + 2 * elements(tensor.shape);
    header[tensor.name] = {
        {"dtype", "F16"}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that tensors are aligned, as writers do
  const uint64_t size = text.size();
  std::ofstream file(directory / "model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&size), sizeof(size));
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  std::mt19937_64 random(20240607);
  for (const NamedShape& tensor : tensors) {
    const double density = tensor.shape.size() == 2 ? model.density : 1.0;
    const std::vector<uint16_t> values = random_values(elements(tensor.shape), density, random);
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(2 * values.size()));
  }
}

}  // namespace sparsellm::testing
