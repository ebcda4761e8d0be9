#include <optional>
#include <tuple>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "models/config_readers.h"

namespace sparsellm {
namespace {

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

}  // namespace

ModelConfig read_rotary_config(const JsonValue& json, const RotaryDefaults& defaults) {
  ModelConfig config = read_common_config(json, defaults.common);
  config.intermediate_size = json["intermediate_size"].integer(1, kMaxWidth);
  const JsonValue kv_heads = json["num_key_value_heads"];
  config.num_kv_heads = defaults.needs_kv_heads ? kv_heads.integer(1, kMaxHeads)
                                                : kv_heads.integer(1, kMaxHeads, config.num_heads);
  if (config.num_heads % config.num_kv_heads != 0) {
    kv_heads.refuse(fmt::format("expected a divisor of num_attention_heads, {}", config.num_heads));
  }
  const JsonValue head_dim = json["head_dim"];
  if (head_dim.present() || defaults.head_dim > 0) {
    config.head_dim = checked_head_dim(json, head_dim.integer(1, kMaxWidth, defaults.head_dim));
  } else {
    config.head_dim = divided_head_dim(json, config);
  }
  config.norm = ModelConfig::Norm::rms_norm;
  config.norm_epsilon = json["rms_norm_eps"].number(1e-20f, 1.0f, 1e-6f);
  config.positions = ModelConfig::Positions::rope;
  read_rope(json, config);
  config.activation = read_activation(json, "hidden_act");
  config.gated_mlp = true;
  return config;
}

ModelConfig read_llama_config(const JsonValue& json) {
  require_absent(json["sliding_window"], "sliding windows are not supported");

  ModelConfig config = read_rotary_config(json, {.common = {.bos = 1, .eos = 2}});
  config.qkv_bias = json["attention_bias"].boolean(false);
  config.attention_out_bias = config.qkv_bias;
  config.mlp_bias = json["mlp_bias"].boolean(false);
  config.tied_head = json["tie_word_embeddings"].boolean(false);
  return config;
}

// Its config.json has the activation of the model that it was trained from.
ModelConfig read_sparse_relu_llama_config(const JsonValue& json) {
  ModelConfig config = read_llama_config(json);
  using Kind = Activation::Kind;
  const JsonValue named = json["hidden_act"];
  if (config.activation.kind != Kind::silu && config.activation.kind != Kind::relu) {
    named.refuse("models of this model_type have relu, and silu in their files");
  }
  if (config.activation.kind == Kind::silu) {
    config.warning = fmt::format(
        "{} is {}, but the code of model_type {} computes ReLU: so does "
        "this engine",
        named.name(), quote(named.string()), json["model_type"].string());
  }
  config.activation = {.kind = Kind::relu};
  return config;
}

}  // namespace sparsellm
