#include "models/compression_config.h"

#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "models/storage/sparse_config.h"
#include "sparse/quantize/quantized_matrix.h"

namespace sparsellm {
namespace {

constexpr std::string_view kNotNarrow = "only weights in f32, f16 and bf16 are supported";
constexpr std::string_view kPackedFormat = "pack-quantized";
constexpr std::string_view kMixedFormat = "mixed-precision";
constexpr std::array<std::string_view, 5> kGroupFormats{"dense", "float-quantized", "int-quantized",
                                                        "naive-quantized", kPackedFormat};
constexpr std::array<std::string_view, 3> kSparseFormats{"dense", "sparse-bitmask",
                                                         "sparse-24-bitmask"};

// Absent, or an object without keys. Throws Error for any other value.
bool has_no_keys(const JsonValue& value) { return !value.present() || value.keys().empty(); }

void require_one_of(const JsonValue& value, std::span<const std::string_view> supported) {
  if (std::ranges::find(supported, value.string()) == supported.end()) {
    value.refuse(fmt::format("supported are {}", fmt::join(supported, ", ")));
  }
}

// The text of a key, which is `fallback` if it is not there.
std::string text_of(const JsonValue& value, std::string_view fallback) {
  return value.present() ? value.string() : std::string(fallback);
}

// Those of one scheme; `format` is in which they are stored.
void check_weights(const JsonValue& weights, std::string_view format) {
  constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();
  if (!weights["symmetric"].boolean(true)) {
    weights["symmetric"].refuse("zero points (asymmetric quantisation) are not supported");
  }
  const JsonValue order = weights["actorder"];
  const bool by_weight = order.is_string() && (order.string() == "weight" ||
                                               order.string() == "static");  // columns stay
  const bool is_off = !order.present() || (!order.is_string() && !order.boolean());
  if (!by_weight && !is_off) {
    order.refuse("groups in the order of activations are not supported");
  }
  if (weights["block_structure"].present()) {
    weights["block_structure"].refuse("scales of blocks are not supported");
  }
  const JsonValue dynamic = weights["dynamic"];
  if (dynamic.present() && (dynamic.is_string() || dynamic.boolean())) {
    dynamic.refuse("weights have to have scales");
  }
  const JsonValue type = weights["type"];
  const JsonValue bits = weights["num_bits"];
  constexpr std::array<std::string_view, 2> kTypes{"int", "float"};
  if (type.present()) {
    require_one_of(type, kTypes);
  }
  const bool is_float = text_of(type, "int") == "float";
  const bool is_packed = format == kPackedFormat;
  const int64_t expected = is_packed ? 4 : 8;
  if (bits.integer(1, kLargest, 8) != expected) {
    bits.refuse(fmt::format("supported are 8, and 4 in the format {}; the format is {}",
                            kPackedFormat, quote(format)));
  }
  if (is_float && is_packed) {
    type.refuse("of 4 bits supported is int");
  }
  const int64_t group = weights["group_size"].integer(-1, kLargest, 0);
  const std::string strategy = text_of(weights["strategy"], group > 0   ? "group"
                                                            : group < 0 ? "channel"
                                                                        : "tensor");
  if (strategy == "group") {
    if (!is_packed) {
      weights["group_size"].refuse("scales of groups are supported with 4 bits alone");
    }
    if (std::ranges::find(kValueGroups, group) == std::end(kValueGroups)) {
      weights["group_size"].refuse(fmt::format("supported are {}", fmt::join(kValueGroups, ", ")));
    }
  } else if (strategy != "channel" && (strategy != "tensor" || is_packed)) {
    weights["strategy"].refuse(is_packed ? "supported are group and channel"
                                         : "supported are tensor and channel");
  }
}

Compression read_groups(const JsonValue& json) {
  const JsonValue groups = json["config_groups"];
  const JsonValue format = json["format"];
  if (has_no_keys(groups)) {
    if (format.present() && format.string() != "dense") {
      format.refuse(kNotNarrow);
    }
    return {};
  }
  const bool is_mixed = format.present() && format.string() == kMixedFormat;
  if (format.present() && !is_mixed) {
    require_one_of(format, kGroupFormats);
  }
  Compression result{.quantizes = true};
  for (const std::string& key : groups.keys()) {
    const JsonValue group = groups[key];
    group["targets"].strings();
    const JsonValue own = group["format"];
    if (own.present()) {
      require_one_of(own, kGroupFormats);
    }
    if (group["weights"].present()) {
      const JsonValue& of_weights = own.present() || is_mixed ? own : format;
      check_weights(group["weights"], of_weights.string());
    }
    result.drops_activations = result.drops_activations || group["input_activations"].present() ||
                               group["output_activations"].present();
  }
  return result;
}

}  // namespace

Compression read_compression(const JsonValue& json) {
  if (is_sparse_config(json)) {
    check_sparse_config(json);
    return {};
  }
  if (!json.is_object() || !json["quant_method"].is_string() ||
      json["quant_method"].string() != "compressed-tensors") {
    if (json.present()) {
      json.refuse(kNotNarrow);
    }
    return {};
  }
  if (!has_no_keys(json["transform_config"])) {
    json["transform_config"].refuse("transformed weights are not supported");
  }
  const JsonValue sparsity = json["sparsity_config"];
  if (sparsity.present() && !sparsity.keys().empty()) {
    require_one_of(sparsity["format"], kSparseFormats);
  }
  if (json["ignore"].present()) {
    json["ignore"].strings();
  }
  Compression result = read_groups(json);
  if (!has_no_keys(json["kv_cache_scheme"])) {
    result.quantizes = true;
    result.drops_activations = true;
  }
  return result;
}

}  // namespace sparsellm
