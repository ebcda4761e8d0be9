#include "models/config_readers.h"

#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/attention.h"
#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "models/storage/sparse_config.h"

namespace sparsellm {
namespace {

constexpr int64_t kMaxLayers = 10'000;
constexpr int64_t kHeadDimUnit = 8;
constexpr int64_t kMinInt32 = std::numeric_limits<int32_t>::min();

// The library compressed-tensors prunes as well as quantizes, and describes both in one object.
// Weights that are only pruned are supported; in which form they are stored is seen by their
// tensors.
void check_compression(const JsonValue& compression) {
  constexpr std::string_view kWhy = "only weights in f32, f16 and bf16 are supported";
  if (is_sparse_config(compression)) {
    check_sparse_config(compression);
    return;
  }
  if (!compression.is_object() || !compression["quant_method"].is_string() ||
      compression["quant_method"].string() != "compressed-tensors") {
    require_absent(compression, kWhy);
    return;
  }
  const auto require_empty = [&](std::string_view key, std::string_view why) {
    const JsonValue value = compression[key];
    if (value.present() && !(value.is_object() && value.keys().empty())) {
      value.refuse(why);
    }
  };
  require_empty("config_groups", kWhy);
  require_empty("kv_cache_scheme", "a quantized KV cache is not supported");
  require_empty("transform_config", "transformed weights are not supported");
  const JsonValue format = compression["format"];
  if (format.present() && format.string() != "dense") {
    format.refuse(kWhy);
  }
  const JsonValue sparsity = compression["sparsity_config"];
  if (sparsity.present() && !sparsity.keys().empty()) {
    constexpr std::array<std::string_view, 3> kFormats{"dense", "sparse-bitmask",
                                                       "sparse-24-bitmask"};
    const JsonValue name = sparsity["format"];
    if (std::find(kFormats.begin(), kFormats.end(), name.string()) == kFormats.end()) {
      name.refuse(fmt::format("supported are {}", fmt::join(kFormats, ", ")));
    }
  }
}

}  // namespace

void require_boolean(const JsonValue& value, bool supported) {
  if (value.boolean(supported) != supported) {
    value.refuse(fmt::format("only {} is supported", supported));
  }
}

void require_absent(const JsonValue& value, std::string_view why) {
  if (value.present()) {
    value.refuse(why);
  }
}

Activation read_activation(const JsonValue& json, std::string_view key) {
  using Kind = Activation::Kind;
  struct Name {
    std::string_view name;
    Kind kind;
  };
  constexpr std::array kNames{
      Name{"relu", Kind::relu},          Name{"gelu", Kind::gelu},
      Name{"gelu_new", Kind::gelu_tanh}, Name{"gelu_pytorch_tanh", Kind::gelu_tanh},
      Name{"silu", Kind::silu},          Name{"swish", Kind::silu},
      Name{"fatrelu", Kind::fatrelu},
  };
  const JsonValue value = json[key];
  for (const Name& known : kNames) {
    if (known.name == value.string()) {
      // The bound excludes only what f16 cannot represent.
      const bool has_threshold = known.kind == Kind::fatrelu;
      return {.kind = known.kind,
              .threshold = has_threshold ? json["hidden_act_param"].number(0.0f, 65504.0f) : 0.0f};
    }
  }
  value.refuse("supported are relu, gelu, gelu_new, gelu_pytorch_tanh, silu, swish and fatrelu");
}

std::vector<int32_t> read_token_ids(const JsonValue& value, std::vector<int64_t> fallback,
                                    int64_t vocab_size) {
  std::vector<int64_t> ids = std::move(fallback);
  if (value.is_null()) {
    ids.clear();
  } else if (value.is_array()) {
    ids = value.integers(kMinInt32, kMaxInt32);
  } else if (value.present()) {
    ids = {value.integer(kMinInt32, kMaxInt32)};
  }
  std::vector<int32_t> result;
  for (int64_t id : ids) {
    require(id < vocab_size, "{} is {}, but vocab_size is {}", value.name(), id, vocab_size);
    if (id >= 0) {
      result.push_back(static_cast<int32_t>(id));
    }
  }
  return result;
}

ModelConfig read_common_config(const JsonValue& json, const CommonDefaults& defaults) {
  check_compression(json[kQuantizationConfig]);
  ModelConfig config;
  config.vocab_size = json["vocab_size"].integer(1, kMaxInt32);
  config.hidden_size = json["hidden_size"].integer(1, kMaxWidth);
  config.num_layers = json["num_hidden_layers"].integer(1, kMaxLayers);
  config.num_heads = json["num_attention_heads"].integer(1, kMaxHeads);
  config.max_positions =
      json["max_position_embeddings"].integer(1, kMaxInt32, defaults.max_positions);

  const JsonValue bos = json["bos_token_id"];
  if (bos.is_array()) {
    bos.refuse("expected one token id");
  }
  for (int32_t id : read_token_ids(bos, {defaults.bos}, config.vocab_size)) {
    config.bos_token_id = id;
  }
  config.eos_token_ids = read_token_ids(json["eos_token_id"], {defaults.eos}, config.vocab_size);
  return config;
}

int64_t checked_head_dim(const JsonValue& json, int64_t head_dim) {
  require(head_dim % kHeadDimUnit == 0 && head_dim <= kMaxHeadDim,
          "{}: the head size {} is not supported; supported are multiples of {} up to {}",
          json.name(), head_dim, kHeadDimUnit, kMaxHeadDim);
  return head_dim;
}

int64_t divided_head_dim(const JsonValue& json, const ModelConfig& config) {
  require(config.hidden_size % config.num_heads == 0,
          "{}: hidden_size {} is not a multiple of num_attention_heads {}", json.name(),
          config.hidden_size, config.num_heads);
  return checked_head_dim(json, config.hidden_size / config.num_heads);
}

}  // namespace sparsellm
