#include "tools/bench/linear_shapes.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "models/linear_layers.h"
#include "models/shard.h"

namespace sparsellm {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr int kConfigDepth = 32;
constexpr int64_t kMaxSize = 1 << 24;
constexpr int64_t kMaxCount = 1 << 14;  // of layers, heads and experts

// What decides on the shapes.
struct Layout {
  ModelConfig config;
  int64_t experts = 0;  // of each block, with an MLP each; 0: the block has one MLP
};

// Of a model that the engine has no reader for, and whose linear layers are Llama's.
ModelConfig read_llama_shapes(const JsonValue& json) {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.positions = ModelConfig::Positions::learned;  // no RoPE frequencies of such a head size
  config.gated_mlp = true;
  config.num_heads = json["num_attention_heads"].integer(1, kMaxCount);
  config.num_kv_heads = json["num_key_value_heads"].integer(1, kMaxCount, config.num_heads);
  config.hidden_size = json["hidden_size"].integer(1, kMaxSize);
  config.head_dim = json["head_dim"].integer(1, kMaxSize, config.hidden_size / config.num_heads);
  config.num_layers = json["num_hidden_layers"].integer(1, kMaxCount);
  config.intermediate_size = json["intermediate_size"].integer(1, kMaxSize);
  config.vocab_size = json["vocab_size"].integer(1, kMaxSize);
  return config;
}

Layout read_layout(const std::filesystem::path& config_file) {
  const JsonDocument document = read_json_file(config_file, kMaxFileBytes, kConfigDepth);
  const JsonValue json(document, config_file.string());
  const std::string architecture(json["architectures"].element(0).string());
  if (architecture == "Qwen2ForCausalLM") {
    return {.config = read_llama_shapes(json)};
  }
  if (architecture == "MixtralForCausalLM") {
    return {.config = read_llama_shapes(json),
            .experts = json["num_local_experts"].integer(1, kMaxCount)};
  }
  return {.config = read_model_config_file(config_file)};
}

void add(std::vector<LinearShape>& shapes, LinearShape more) {
  for (LinearShape& shape : shapes) {
    if (shape.name == more.name && shape.out == more.out && shape.in == more.in) {
      shape.count += more.count;
      return;
    }
  }
  shapes.push_back(std::move(more));
}

std::vector<LinearShape> shapes_of(const Layout& layout, const Shard& shard = {}) {
  const ModelConfig& config = layout.config;
  std::vector<LinearShape> shapes;
  for (const JoinedLinear& joined : joined_linear_layers(config, shard)) {
    const std::string kind = kind_of(joined.parts.front());
    const bool of_experts = layout.experts > 0 && kind.starts_with("mlp.");
    add(shapes, {.name = kind,
                 .out = joined.rows,
                 .in = joined.columns,
                 .count = of_experts ? layout.experts : 1,
                 .pruned = true});
  }
  if (layout.experts > 0) {
    add(shapes, {.name = "router",
                 .out = layout.experts,
                 .in = config.hidden_size,
                 .count = config.num_layers,
                 .pruned = false});
  }
  if (const int64_t rows = vocabulary(config, shard).count; rows > 0) {
    add(shapes,
        {.name = "head", .out = rows, .in = config.hidden_size, .count = 1, .pruned = false});
  }
  return shapes;
}

}  // namespace

std::vector<LinearShape> linear_shapes(const ModelConfig& config, const Shard& shard) {
  return shapes_of({.config = config}, shard);
}

std::vector<LinearShape> linear_shapes(const std::filesystem::path& config_file) {
  return shapes_of(read_layout(config_file));
}

std::vector<LinearShape> linear_shard_shapes(const std::filesystem::path& config_file,
                                             const Shard& shard) {
  const Layout layout = read_layout(config_file);
  const std::string reason = why_not_shared(layout.config, shard.degree);
  require(reason.empty(), "{}: {}", config_file.string(), reason);
  return shapes_of(layout, shard);
}

}  // namespace sparsellm
