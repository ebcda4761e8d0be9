#include "tools/linear_shapes.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"

namespace sparsellm {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr int kMaxDepth = 32;
constexpr int64_t kMaxSize = 1 << 24;
constexpr int64_t kMaxCount = 1 << 14;  // of layers, heads and experts

// A Llama-like model that the engine has no config for.
struct Dimensions {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t q_size = 0;
  int64_t kv_size = 0;
  int64_t vocabulary = 0;
};

Dimensions read_dimensions(const JsonValue& json) {
  const int64_t heads = json["num_attention_heads"].integer(1, kMaxCount);
  const int64_t kv_heads = json["num_key_value_heads"].integer(1, kMaxCount, heads);
  const int64_t hidden = json["hidden_size"].integer(1, kMaxSize);
  const int64_t head_dim = json["head_dim"].integer(1, kMaxSize, hidden / heads);
  return {.layers = json["num_hidden_layers"].integer(1, kMaxCount),
          .hidden = hidden,
          .intermediate = json["intermediate_size"].integer(1, kMaxSize),
          .q_size = heads * head_dim,
          .kv_size = kv_heads * head_dim,
          .vocabulary = json["vocab_size"].integer(1, kMaxSize)};
}

void add_attention(std::vector<LinearShape>& shapes, const Dimensions& d) {
  shapes.push_back({.name = "qkv",
                    .out = d.q_size + 2 * d.kv_size,
                    .in = d.hidden,
                    .count = d.layers,
                    .pruned = true});
  shapes.push_back({.name = "attention_out",
                    .out = d.hidden,
                    .in = d.q_size,
                    .count = d.layers,
                    .pruned = true});
}

// One MLP whose first layers are `parts` (1, or 2 for gate and up) joined.
void add_mlp(std::vector<LinearShape>& shapes, const Dimensions& d, int64_t parts) {
  shapes.push_back({.name = parts == 2 ? "gate_up" : "up",
                    .out = parts * d.intermediate,
                    .in = d.hidden,
                    .count = d.layers,
                    .pruned = true});
  shapes.push_back(
      {.name = "down", .out = d.hidden, .in = d.intermediate, .count = d.layers, .pruned = true});
}

void add_experts(std::vector<LinearShape>& shapes, const Dimensions& d, int64_t experts) {
  shapes.push_back(
      {.name = "router", .out = experts, .in = d.hidden, .count = d.layers, .pruned = false});
  shapes.push_back({.name = "expert_gate_up",
                    .out = 2 * d.intermediate,
                    .in = d.hidden,
                    .count = d.layers * experts,
                    .pruned = true});
  shapes.push_back({.name = "expert_down",
                    .out = d.hidden,
                    .in = d.intermediate,
                    .count = d.layers * experts,
                    .pruned = true});
}

void add_head(std::vector<LinearShape>& shapes, const Dimensions& d) {
  shapes.push_back(
      {.name = "head", .out = d.vocabulary, .in = d.hidden, .count = 1, .pruned = false});
}

std::vector<LinearShape> qwen2_shapes(const JsonValue& json) {
  const Dimensions d = read_dimensions(json);
  std::vector<LinearShape> shapes;
  add_attention(shapes, d);
  add_mlp(shapes, d, 2);
  add_head(shapes, d);
  return shapes;
}

std::vector<LinearShape> mixtral_shapes(const JsonValue& json) {
  const Dimensions d = read_dimensions(json);
  std::vector<LinearShape> shapes;
  add_attention(shapes, d);
  add_experts(shapes, d, json["num_local_experts"].integer(1, kMaxCount));
  add_head(shapes, d);
  return shapes;
}

}  // namespace

std::vector<LinearShape> linear_shapes(const ModelConfig& config) {
  const Dimensions d{.layers = config.num_layers,
                     .hidden = config.hidden_size,
                     .intermediate = config.intermediate_size,
                     .q_size = config.num_heads * config.head_dim,
                     .kv_size = config.num_kv_heads * config.head_dim,
                     .vocabulary = config.vocab_size};
  std::vector<LinearShape> shapes;
  add_attention(shapes, d);
  add_mlp(shapes, d, config.gated_mlp ? 2 : 1);
  add_head(shapes, d);
  return shapes;
}

std::vector<LinearShape> linear_shapes(const std::filesystem::path& config_file) {
  const nlohmann::json document = read_json_file(config_file, kMaxFileBytes, kMaxDepth);
  const JsonValue json(document, config_file.string());
  const JsonValue architecture = json["architectures"].element(0);
  if (architecture.string() == "Qwen2ForCausalLM") {
    return qwen2_shapes(json);
  }
  if (architecture.string() == "MixtralForCausalLM") {
    return mixtral_shapes(json);
  }
  return linear_shapes(read_model_config_file(config_file));
}

}  // namespace sparsellm
