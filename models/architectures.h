#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace sparsellm {

struct ArchitectureBuilder;  // models/builders.h
class JsonValue;             // kernels/base/json_reader.h
struct ModelConfig;          // models/config.h

// Whose code computes a model of the architecture: that of transformers, or one that comes with the
// checkpoint, has no name there, and may take keys that others ignore.
enum class ModelCode : uint8_t { transformers, own };

// An architecture that the engine runs.
struct Architecture {
  std::string_view name;        // architectures[0] of its config.json
  std::string_view model_type;  // there; files with transformers' code may have none
  ModelCode code;
  ModelConfig (*read)(const JsonValue& json);  // models/config_readers.h
  // Keys of models/foreign_keys.cpp that it reads itself.
  std::span<const std::string_view> own_keys = {};
  // Ends of the names of tensors that its checkpoints may have and the engine does not use.
  std::span<const std::string_view> left_out = {};
  ArchitectureBuilder (*builder)();
};

// All of them.
std::span<const Architecture> architectures();
// That of a config. Throws Error if it is none of these.
const Architecture& architecture_of(const ModelConfig& config);

}  // namespace sparsellm
