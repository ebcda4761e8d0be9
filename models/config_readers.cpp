#include "models/config_readers.h"

#include <array>
#include <utility>

#include "kernels/attention.h"
#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "models/compression_config.h"
#include "models/storage/sparse_config.h"

namespace sparsellm {
namespace {

constexpr int64_t kMaxLayers = 10'000;
constexpr int64_t kHeadDimUnit = 8;
constexpr int64_t kMinInt32 = std::numeric_limits<int32_t>::min();

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
  const JsonValue compression_json = json[kQuantizationConfig];
  const Compression compression = read_compression(compression_json);
  ModelConfig config;
  config.is_quantized = compression.quantizes;
  if (compression.drops_activations) {
    config.quantization_warning = fmt::format(
        "{}: activations or the KV cache are to be quantised, which is left out here: they stay in "
        "the dtype that the model computes in",
        compression_json.name());
  }
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
