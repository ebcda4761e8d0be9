#include "models/foreign_keys.h"

#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

// Besides null, which changes nothing anywhere.
enum class Neutral : uint8_t {
  one,
  off,         // false
  null_alone,  // any number clips
  root_of_layers,
  inverse_root_of_head,
};

struct ForeignKey {
  std::string_view name;
  Neutral neutral;
};

constexpr std::array kForeignKeys{
    ForeignKey{"scale_emb", Neutral::one},
    // What a block adds is multiplied by scale_depth / sqrt(layers).
    ForeignKey{"scale_depth", Neutral::root_of_layers},
    ForeignKey{"residual_multiplier", Neutral::one},
    ForeignKey{"embedding_multiplier", Neutral::one},
    // Of scores, in the place of 1 / sqrt(head_dim).
    ForeignKey{"attention_multiplier", Neutral::inverse_root_of_head},
    ForeignKey{"logits_scaling", Neutral::one},
    ForeignKey{"logit_scale", Neutral::one},
    ForeignKey{"rope_interleaved", Neutral::off},
    ForeignKey{"attn_logit_softcapping", Neutral::null_alone},
    ForeignKey{"final_logit_softcapping", Neutral::null_alone},
    ForeignKey{"clip_qkv", Neutral::null_alone},
    ForeignKey{"use_qk_norm", Neutral::off},
};

bool is_neutral(const JsonValue& value, Neutral neutral, const ModelConfig& config) {
  if (neutral == Neutral::off) {
    return !value.boolean();
  }
  constexpr float kLargest = std::numeric_limits<float>::max();
  const float number = value.number(-kLargest, kLargest);
  const auto is_about = [&](double expected) {
    constexpr double kRounding = 1e-5;  // of a root that was written with a few digits
    return std::abs(number - expected) <= kRounding * expected;
  };
  switch (neutral) {
    case Neutral::one:
      return number == 1.0f;
    case Neutral::root_of_layers:
      return is_about(std::sqrt(static_cast<double>(config.num_layers)));
    case Neutral::inverse_root_of_head:
      return is_about(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
    default:
      return false;
  }
}

// Names, of keys that are not neutral.
std::vector<std::string_view> foreign_keys(const JsonValue& json, const ModelConfig& config) {
  std::vector<std::string_view> found;
  for (const ForeignKey& key : kForeignKeys) {
    const JsonValue value = json[key.name];
    if (value.present() && !is_neutral(value, key.neutral, config)) {
      found.push_back(key.name);
    }
  }
  return found;
}

}  // namespace

std::string ignored_keys_warning(const JsonValue& json, const ModelConfig& config) {
  std::vector<std::string_view> keys = foreign_keys(json, config);
  constexpr std::string_view kCode = "auto_map";
  if (json[kCode].present()) {
    keys.push_back(kCode);
  }
  return keys.empty() ? std::string()
                      : fmt::format(
                            "{}: {} of transformers ignores {}, and so does this engine: output is "
                            "wrong if the model was trained with code that does not",
                            json.name(), config.architecture, fmt::join(keys, ", "));
}

void refuse_foreign_keys(const JsonValue& json, const ModelConfig& config,
                         std::span<const std::string_view> own_keys) {
  std::vector<std::string_view> keys = foreign_keys(json, config);
  std::erase_if(keys, [&](std::string_view key) {
    return std::ranges::find(own_keys, key) != own_keys.end();
  });
  if (!keys.empty()) {
    json[keys.front()].refuse(fmt::format("{} is not supported with it", config.architecture));
  }
}

}  // namespace sparsellm
