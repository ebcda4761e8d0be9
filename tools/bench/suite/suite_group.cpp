#include "tools/bench/suite/suite_group.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "models/shard.h"
#include "tools/bench/args.h"
#include "tools/bench/suite/suite_group_parts.h"
#include "tools/bench/suite/suite_lists.h"
#include "tools/cli/args.h"

namespace sparsellm {
namespace {

constexpr int64_t kMostSuiteGpus = 64;
constexpr int64_t kMostSuiteBatch = int64_t{1} << 16;
constexpr int64_t kMostSuiteTokens = int64_t{1} << 20;
constexpr int64_t kMostSuiteElements = int64_t{1} << 32;  // of a weight

std::string read_records(const JsonValue& value) {
  const std::string& text = value.string();
  if (text != "speed" && text != "size") {
    value.refuse("expected speed or size");
  }
  return text == "speed" ? std::string() : text;
}

std::string read_gpu_memory(const JsonValue& value) {
  const std::string& text = value.string();
  try {
    parse_size("", text);
  } catch (const Error&) {
    value.refuse("expected bytes, such as 24G");
  }
  return text;
}

std::pair<int64_t, int64_t> read_suite_shape(const JsonValue& value) {
  try {
    const std::pair<int64_t, int64_t> shape = parse_shape("", value.string());
    if (shape.first * shape.second <= kMostSuiteElements) {
      return shape;
    }
  } catch (const Error&) {
    // Refused below, by the name of the key.
  }
  value.refuse(
      fmt::format("expected outputs x inputs of a layer, such as 28672x7168, and at most "
                  "{} elements",
                  kMostSuiteElements));
}

// What no model of the group can have.
void require_possible_cells(const JsonValue& value, const SuiteGroup& group, SuiteModels& models) {
  const bool skips = std::ranges::any_of(group.activations, [](const SuiteActivation& a) {
    return a.mode != ActivationSparsity::Mode::off;
  });
  for (const std::string& model : group.models) {
    const ModelConfig& config = models.config(value["models"], model);
    for (const int64_t gpus : group.gpus) {
      const std::string reason = why_not_shared(config, gpus);
      require(reason.empty(), "{}: {}: {}", value["gpus"].name(), model, reason);
    }
    for (const int64_t output : group.outputs) {
      require(group.prompt + output <= config.max_positions,
              "{}: {} has {} positions, fewer than {} tokens of a prompt and {} after it",
              value["outputs"].name(), model, config.max_positions, group.prompt, output);
    }
    if (skips) {
      try {
        activation_sparsity_for(config, {.mode = ActivationSparsity::Mode::exact});
      } catch (const Error& error) {
        fail("{}: {}: {}", value["activation_sparsity"].name(), model, error.what());
      }
    }
  }
}

void read_engine_group(const JsonValue& value, SuiteModels& models, SuiteGroup& group) {
  value.allow_only({"kind", "models", "formats", "plans", "sparsities", "patterns", "records",
                    "activation_sparsity", "dtype", "gpus", "gpu_memory", "batches", "prompt",
                    "outputs", "breakdown"});
  group.models = read_suite_texts(value["models"]);
  group.formats = read_suite_formats(value["formats"], group.kind);
  group.zeros = read_suite_zeros(value, group.formats, models);
  group.activations = read_suite_activations(value["activation_sparsity"]);
  group.batches = read_suite_integers(value["batches"], 1, kMostSuiteBatch);
  group.prompt = value["prompt"].integer(1, kMostSuiteTokens, group.prompt);
  group.breakdown = value["breakdown"].boolean(false);
  if (value["gpus"].present()) {
    group.gpus = read_suite_integers(value["gpus"], 1, kMostSuiteGpus);
  }
  if (value["outputs"].present()) {
    group.outputs = read_suite_integers(value["outputs"], 1, kMostSuiteTokens);
  }
  if (value["gpu_memory"].present()) {
    group.gpu_memory = read_suite_list(value["gpu_memory"], read_gpu_memory);
  }
  if (value["records"].present()) {
    group.records = read_suite_list(value["records"], read_records);
  }
  require_possible_cells(value, group, models);
}

void read_kernel_group(const JsonValue& value, SuiteModels& models, SuiteGroup& group) {
  value.allow_only(
      {"kind", "models", "shapes", "formats", "sparsities", "patterns", "dtype", "tokens"});
  if (value["shapes"].present()) {
    group.shapes = read_suite_list(value["shapes"], read_suite_shape);
  }
  if (value["models"].present() || group.shapes.empty()) {
    group.models = read_suite_texts(value["models"]);
  }
  for (const std::string& model : group.models) {
    for (const auto& shape : models.shapes(value["models"], model)) {
      if (std::ranges::find(group.shapes, shape) == group.shapes.end()) {
        group.shapes.push_back(shape);
      }
    }
  }
  group.formats = read_suite_formats(value["formats"], group.kind);
  group.zeros = read_suite_zeros(value, group.formats, models);
  group.tokens = read_suite_integers(value["tokens"], 1, kMostSuiteTokens);
}

}  // namespace

SuiteGroup read_suite_group(const JsonValue& value, SuiteModels& models) {
  SuiteGroup group;
  group.name = value.name();
  if (const JsonValue kind = value["kind"]; kind.present()) {
    if (kind.string() != "engine" && kind.string() != "kernel") {
      kind.refuse("expected engine or kernel");
    }
    group.kind = kind.string() == "engine" ? SuiteGroup::Kind::engine : SuiteGroup::Kind::kernel;
  }
  if (value["dtype"].present()) {
    group.dtype = one_of_suite(value["dtype"], {DType::f16, DType::bf16});
  }
  if (group.kind == SuiteGroup::Kind::engine) {
    read_engine_group(value, models, group);
  } else {
    read_kernel_group(value, models, group);
  }
  return group;
}

}  // namespace sparsellm
