#include "tools/bench/linear_shapes.h"

#include <string_view>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"

namespace sparsellm {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr int kMaxDepth = 32;
constexpr int64_t kMaxSize = 1 << 24;
constexpr int64_t kMaxCount = 1 << 14;  // of layers, heads and experts

// Of a model, also of one that the engine has no config for.
struct Dimensions {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocabulary = 0;
  int64_t experts = 0;  // 0: one MLP

  int64_t q_size() const { return heads * head_dim; }
  int64_t kv_size() const { return kv_heads * head_dim; }
};

Dimensions read_dimensions(const JsonValue& json) {
  const int64_t heads = json["num_attention_heads"].integer(1, kMaxCount);
  const int64_t kv_heads = json["num_key_value_heads"].integer(1, kMaxCount, heads);
  const int64_t hidden = json["hidden_size"].integer(1, kMaxSize);
  const int64_t head_dim = json["head_dim"].integer(1, kMaxSize, hidden / heads);
  return {.layers = json["num_hidden_layers"].integer(1, kMaxCount),
          .hidden = hidden,
          .intermediate = json["intermediate_size"].integer(1, kMaxSize),
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .vocabulary = json["vocab_size"].integer(1, kMaxSize)};
}

void add_attention(std::vector<LinearShape>& shapes, const Dimensions& d) {
  shapes.push_back({.name = "qkv",
                    .out = d.q_size() + 2 * d.kv_size(),
                    .in = d.hidden,
                    .count = d.layers,
                    .pruned = true});
  shapes.push_back({.name = "attention_out",
                    .out = d.hidden,
                    .in = d.q_size(),
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

void add_experts(std::vector<LinearShape>& shapes, const Dimensions& d) {
  shapes.push_back(
      {.name = "router", .out = d.experts, .in = d.hidden, .count = d.layers, .pruned = false});
  shapes.push_back({.name = "expert_gate_up",
                    .out = 2 * d.intermediate,
                    .in = d.hidden,
                    .count = d.layers * d.experts,
                    .pruned = true});
  shapes.push_back({.name = "expert_down",
                    .out = d.hidden,
                    .in = d.intermediate,
                    .count = d.layers * d.experts,
                    .pruned = true});
}

void add_head(std::vector<LinearShape>& shapes, const Dimensions& d) {
  shapes.push_back(
      {.name = "head", .out = d.vocabulary, .in = d.hidden, .count = 1, .pruned = false});
}

Dimensions dimensions_of(const ModelConfig& config) {
  return {.layers = config.num_layers,
          .hidden = config.hidden_size,
          .intermediate = config.intermediate_size,
          .heads = config.num_heads,
          .kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .vocabulary = config.vocab_size};
}

// What decides on the shapes, besides whether the MLP is gated.
struct Layout {
  Dimensions dimensions;
  bool gated = true;
};

Layout layout_of(const ModelConfig& config) {
  return {.dimensions = dimensions_of(config), .gated = config.gated_mlp};
}

Layout read_layout(const std::filesystem::path& config_file) {
  const JsonDocument document = read_json_file(config_file, kMaxFileBytes, kMaxDepth);
  const JsonValue json(document, config_file.string());
  const std::string architecture(json["architectures"].element(0).string());
  if (architecture == "Qwen2ForCausalLM") {
    return {.dimensions = read_dimensions(json)};
  }
  if (architecture == "MixtralForCausalLM") {
    Layout layout{.dimensions = read_dimensions(json)};
    layout.dimensions.experts = json["num_local_experts"].integer(1, kMaxCount);
    return layout;
  }
  return layout_of(read_model_config_file(config_file));
}

std::vector<LinearShape> shapes_of(const Layout& layout) {
  const Dimensions& d = layout.dimensions;
  std::vector<LinearShape> shapes;
  add_attention(shapes, d);
  if (d.experts > 0) {
    add_experts(shapes, d);
  } else {
    add_mlp(shapes, d, layout.gated ? 2 : 1);
  }
  add_head(shapes, d);
  return shapes;
}

}  // namespace

std::vector<LinearShape> linear_shapes(const ModelConfig& config) {
  return shapes_of(layout_of(config));
}

std::vector<LinearShape> linear_shapes(const std::filesystem::path& config_file) {
  return shapes_of(read_layout(config_file));
}

std::vector<LinearShape> linear_shard_shapes(const std::filesystem::path& config_file,
                                             int64_t degree) {
  Layout layout = read_layout(config_file);
  Dimensions& d = layout.dimensions;
  const auto share = [&](int64_t& size, const char* what) {
    require(degree > 0 && size % degree == 0, "{}: {} GPUs cannot share {} {} equally",
            config_file.string(), degree, size, what);
    size /= degree;
  };
  share(d.heads, "attention heads");
  share(d.kv_heads, "heads of keys and values");
  share(d.intermediate, "intermediate features");
  return shapes_of(layout);
}

}  // namespace sparsellm
