#include "models/config.h"

#include <spdlog/fmt/ranges.h>

#include <limits>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "models/architectures.h"
#include "models/config_readers.h"
#include "models/foreign_keys.h"

namespace sparsellm {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr int kMaxDepth = 32;

// Files that were written by hand or by old libraries have no type; it tells families with code of
// their own apart.
bool takes_type(const Architecture& architecture, const JsonValue& type) {
  return type.present() ? type.string() == architecture.model_type
                        : architecture.code == ModelCode::transformers;
}

const Architecture& find_architecture(const JsonValue& json) {
  const JsonValue given = json["architectures"];
  const JsonValue type = json["model_type"];
  const std::vector<std::string> names = given.strings();
  require(!names.empty(), "{} is empty", given.name());
  std::vector<std::string> supported;
  for (const Architecture& known : architectures()) {
    if (known.name == names.front() && takes_type(known, type)) {
      return known;
    }
    supported.push_back(fmt::format("{} with {}{}", known.name, known.model_type,
                                    known.code == ModelCode::transformers ? " or none" : ""));
  }
  fail("{} holds {}, with {} model_type{}; supported are {}", given.name(), quote(names.front()),
       type.present() ? "the" : "no", type.present() ? " " + quote(type.string()) : "",
       fmt::join(supported, ", "));
}

ModelConfig read_architecture(const JsonValue& json) {
  const Architecture& architecture = find_architecture(json);
  ModelConfig config = architecture.read(json);
  config.architecture = architecture.name;
  config.activation_sparsity = read_activation_sparsity(json[kActivationSparsityMember],
                                                        config.num_layers, config.activation);
  if (architecture.code == ModelCode::own) {
    refuse_foreign_keys(json, config, architecture.own_keys);
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
