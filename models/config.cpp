#include "models/config.h"

#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "models/foreign_keys.h"
#include "models/storage/sparse_config.h"

namespace sparsellm {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr int kMaxDepth = 32;

constexpr int64_t kMaxWidth = 1 << 24;  // of a hidden state
constexpr int64_t kMaxHeads = 1 << 16;
constexpr int64_t kMaxHeadDim = 256;
constexpr int64_t kHeadDimUnit = 8;
constexpr int64_t kMaxLayers = 10'000;
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMinInt32 = std::numeric_limits<int32_t>::min();

// A switch of which the engine implements one position.
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

// A token id that is negative or null stands for none.
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

// What OPT and Llama have in common; the two token ids are for a file without them.
ModelConfig read_common(const JsonValue& json, int64_t bos_fallback, int64_t eos_fallback) {
  check_compression(json[kQuantizationConfig]);
  ModelConfig config;
  config.vocab_size = json["vocab_size"].integer(1, kMaxInt32);
  config.hidden_size = json["hidden_size"].integer(1, kMaxWidth);
  config.num_layers = json["num_hidden_layers"].integer(1, kMaxLayers);
  config.num_heads = json["num_attention_heads"].integer(1, kMaxHeads);
  config.max_positions = json["max_position_embeddings"].integer(1, kMaxInt32, 2048);

  const JsonValue bos = json["bos_token_id"];
  if (bos.is_array()) {
    bos.refuse("expected one token id");
  }
  for (int32_t id : read_token_ids(bos, {bos_fallback}, config.vocab_size)) {
    config.bos_token_id = id;
  }
  config.eos_token_ids = read_token_ids(json["eos_token_id"], {eos_fallback}, config.vocab_size);
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

ModelConfig read_opt(const JsonValue& json) {
  require_boolean(json["do_layer_norm_before"], true);
  require_boolean(json["_remove_final_layer_norm"], false);
  require_boolean(json["layer_norm_elementwise_affine"], true);
  require_boolean(json["enable_bias"], true);

  ModelConfig config = read_common(json, 2, 2);
  config.intermediate_size = json["ffn_dim"].integer(1, kMaxWidth);
  config.num_kv_heads = config.num_heads;
  config.head_dim = divided_head_dim(json, config);
  const JsonValue projection = json["word_embed_proj_dim"];
  if (projection.integer(1, kMaxWidth, config.hidden_size) != config.hidden_size) {
    projection.refuse(fmt::format("only hidden_size, {}, is supported", config.hidden_size));
  }
  config.norm = ModelConfig::Norm::layer_norm;
  config.positions = ModelConfig::Positions::learned;
  config.activation = read_activation(json, "activation_function");
  config.attention_bias = true;
  config.mlp_bias = true;
  config.tied_head = json["tie_word_embeddings"].boolean(true);
  return config;
}

RopeScaling::Kind read_rope_kind(const JsonValue& rope) {
  const JsonValue old_spelling = rope["type"];
  const JsonValue type = rope["rope_type"].present() ? rope["rope_type"] : old_spelling;
  if (!type.present()) {
    return RopeScaling::Kind::none;
  }
  if (old_spelling.present() && old_spelling.string() != type.string()) {
    old_spelling.refuse(fmt::format("but {} is {}", type.name(), quote(type.string())));
  }
  if (type.string() == "default") {
    return RopeScaling::Kind::none;
  }
  if (type.string() == "linear") {
    return RopeScaling::Kind::linear;
  }
  if (type.string() == "llama3") {
    return RopeScaling::Kind::llama3;
  }
  type.refuse("supported are default, linear and llama3");
}

RopeScaling read_rope_scaling(const JsonValue& rope) {
  constexpr float kMaxFactor = 1e6f;
  rope.allow_only({"type", "rope_type", "rope_theta", "partial_rotary_factor", "factor",
                   "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"});
  RopeScaling scaling;
  scaling.kind = read_rope_kind(rope);
  const JsonValue factor = rope["factor"];
  if (scaling.kind == RopeScaling::Kind::none) {
    if (factor.number(1.0f, kMaxFactor, 1.0f) != 1.0f) {
      factor.refuse("the default rope type has no factor");
    }
    return scaling;
  }
  scaling.factor = factor.number(1.0f, kMaxFactor);
  if (scaling.kind == RopeScaling::Kind::llama3) {
    scaling.low_frequency_factor = rope["low_freq_factor"].number(1e-3f, kMaxFactor);
    scaling.high_frequency_factor = rope["high_freq_factor"].number(1e-3f, kMaxFactor);
    scaling.original_positions = rope["original_max_position_embeddings"].integer(1, kMaxInt32);
    require(scaling.high_frequency_factor > scaling.low_frequency_factor,
            "{}: high_freq_factor {} is not larger than low_freq_factor {}", rope.name(),
            scaling.high_frequency_factor, scaling.low_frequency_factor);
  }
  return scaling;
}

bool same(const RopeScaling& a, const RopeScaling& b) {
  const auto fields = [](const RopeScaling& s) {
    return std::tie(s.kind, s.factor, s.low_frequency_factor, s.high_frequency_factor,
                    s.original_positions);
  };
  return fields(a) == fields(b);
}

// Older files have rope_theta and rope_scaling, newer ones rope_parameters with both inside. A file
// with both spellings must say the same in both.
void read_rope(const JsonValue& json, ModelConfig& config) {
  std::optional<float> theta;
  std::optional<RopeScaling> scaling;
  const auto read_theta_and_part = [&](const JsonValue& object) {
    const JsonValue value = object["rope_theta"];
    if (value.present()) {
      const float read = value.number(1.0f, 1e15f);
      if (theta && *theta != read) {
        value.refuse(fmt::format("but another rope_theta of the file is {}", *theta));
      }
      theta = read;
    }
    const JsonValue part = object["partial_rotary_factor"];
    if (part.number(0.0f, 1.0f, 1.0f) != 1.0f) {
      part.refuse("only 1 is supported");
    }
  };
  read_theta_and_part(json);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const JsonValue rope = json[key];
    if (rope.present()) {
      const RopeScaling read = read_rope_scaling(rope);
      require(!scaling || same(*scaling, read), "{} differs from rope_scaling", rope.name());
      scaling = read;
      read_theta_and_part(rope);
    }
  }
  config.rope_theta = theta.value_or(10000.0f);
  config.rope_scaling = scaling.value_or(RopeScaling{});
}

ModelConfig read_llama(const JsonValue& json) {
  require_absent(json["sliding_window"], "sliding windows are not supported");

  ModelConfig config = read_common(json, 1, 2);
  config.intermediate_size = json["intermediate_size"].integer(1, kMaxWidth);
  const JsonValue kv_heads = json["num_key_value_heads"];
  config.num_kv_heads = kv_heads.integer(1, kMaxHeads, config.num_heads);
  if (config.num_heads % config.num_kv_heads != 0) {
    kv_heads.refuse(fmt::format("expected a divisor of num_attention_heads, {}", config.num_heads));
  }
  const JsonValue head_dim = json["head_dim"];
  config.head_dim = head_dim.present() ? checked_head_dim(json, head_dim.integer(1, kMaxWidth))
                                       : divided_head_dim(json, config);
  config.norm = ModelConfig::Norm::rms_norm;
  config.norm_epsilon = json["rms_norm_eps"].number(1e-20f, 1.0f, 1e-6f);
  config.positions = ModelConfig::Positions::rope;
  read_rope(json, config);
  config.activation = read_activation(json, "hidden_act");
  config.gated_mlp = true;
  config.attention_bias = json["attention_bias"].boolean(false);
  config.mlp_bias = json["mlp_bias"].boolean(false);
  config.tied_head = json["tie_word_embeddings"].boolean(false);
  return config;
}

// Whose code computes a model of the architecture: that of transformers, or one that comes with the
// checkpoint, has no name there, and may take keys that others ignore.
enum class Code : uint8_t { transformers, own };

struct Architecture {
  std::string_view name;
  std::string_view model_type;
  Code code;
  ModelConfig (*read)(const JsonValue& json);

  // Files that were written by hand or by old libraries have no type; it tells families with code
  // of their own apart.
  bool takes(const JsonValue& type) const {
    return type.present() ? type.string() == model_type : code == Code::transformers;
  }
};

constexpr std::array kArchitectures{
    Architecture{"LlamaForCausalLM", "llama", Code::transformers, read_llama},
    Architecture{"OPTForCausalLM", "opt", Code::transformers, read_opt},
    Architecture{"SparseLlamaForCausalLM", "sparsellama", Code::own, read_llama},  // ProSparse
};

const Architecture& find_architecture(const JsonValue& json) {
  const JsonValue architectures = json["architectures"];
  const JsonValue type = json["model_type"];
  const std::vector<std::string> names = architectures.strings();
  require(!names.empty(), "{} is empty", architectures.name());
  std::vector<std::string> supported;
  for (const Architecture& known : kArchitectures) {
    if (known.name == names.front() && known.takes(type)) {
      return known;
    }
    supported.push_back(fmt::format("{} with {}{}", known.name, known.model_type,
                                    known.code == Code::transformers ? " or none" : ""));
  }
  fail("{} holds {}, with {} model_type{}; supported are {}", architectures.name(),
       quote(names.front()), type.present() ? "the" : "no",
       type.present() ? " " + quote(type.string()) : "", fmt::join(supported, ", "));
}

ModelConfig read_architecture(const JsonValue& json) {
  const Architecture& architecture = find_architecture(json);
  ModelConfig config = architecture.read(json);
  config.architecture = architecture.name;
  if (architecture.code == Code::own) {
    refuse_foreign_keys(json, config);
  } else {
    config.warning = ignored_keys_warning(json, config);
  }
  return config;
}

// An empty object if there is no such file.
JsonDocument read_generation_config(const InputFile& file) {
  return is_there(file) ? read_json_file(file, kMaxFileBytes, kMaxDepth)
                        : parse_json("{}", file.string(), kMaxDepth);
}

InputFile generation_config(const OpenDirectory& directory) {
  return directory / "generation_config.json";
}

}  // namespace

ModelConfig read_model_config_file(const InputFile& file) {
  const JsonDocument document = read_json_file(file, kMaxFileBytes, kMaxDepth);
  return read_architecture(JsonValue(document, file.string()));
}

ModelConfig read_model_config(const OpenDirectory& directory) {
  ModelConfig config = read_model_config_file(directory / "config.json");

  const InputFile generation_file = generation_config(directory);
  const JsonDocument generation = read_generation_config(generation_file);
  const JsonValue eos = JsonValue(generation, generation_file.string())["eos_token_id"];
  std::vector<int32_t> eos_ids = read_token_ids(eos, {}, config.vocab_size);
  if (!eos_ids.empty()) {
    config.eos_token_ids = std::move(eos_ids);
  }
  return config;
}

GenerationDefaults read_generation_defaults(const OpenDirectory& directory) {
  const InputFile file = generation_config(directory);
  const JsonDocument document = read_generation_config(file);
  const JsonValue json(document, file.string());
  const auto number = [&](std::string_view key, float max) -> std::optional<float> {
    const JsonValue value = json[key];
    return value.present() ? std::optional(value.number(0.0f, max)) : std::nullopt;
  };

  GenerationDefaults defaults;
  if (json["do_sample"].present()) {
    defaults.do_sample = json["do_sample"].boolean();
  }
  if (json["top_k"].present()) {
    defaults.top_k = static_cast<int32_t>(json["top_k"].integer(0, kMaxInt32));
  }
  defaults.temperature = number("temperature", std::numeric_limits<float>::max());
  defaults.top_p = number("top_p", 1.0f);
  if (defaults.top_p == 0.0f) {
    json["top_p"].refuse("expected a number above 0 and at most 1");
  }
  defaults.min_p = number("min_p", 1.0f);
  defaults.repetition_penalty = number("repetition_penalty", std::numeric_limits<float>::max());
  if (defaults.repetition_penalty == 0.0f) {
    json["repetition_penalty"].refuse("expected a number above 0");
  }
  return defaults;
}

}  // namespace sparsellm
