#include "engine/conversion/output_config.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/json_reader.h"
#include "models/storage/sparse_config.h"

namespace sparsellm {

std::optional<std::string> output_config(const InputFile& input, const OutputWeights& weights) {
  constexpr int64_t kMaxBytes = 1 << 20;
  constexpr int kMaxDepth = 64;
  const JsonDocument document = read_json_file(input, kMaxBytes, kMaxDepth);
  const nlohmann::json& config = document.root();
  JsonDocument copy = read_json_file(input, kMaxBytes, kMaxDepth);
  nlohmann::json& changed = copy.root();
  const std::string key(kQuantizationConfig);
  if (weights.had_bitmasks || is_sparse_config(JsonValue(config, input.string())[key])) {
    remove_member(changed, key);
  }
  JsonDocument quantization;
  if (!weights.formats.empty()) {
    quantization = parse_json(sparse_config(weights.formats, weights.values), key, kMaxDepth);
    remove_member(changed, key);
    changed[key].swap(quantization.root());
  }
  if (weights.dtype) {
    const std::string name = *weights.dtype == DType::f16 ? "float16" : "bfloat16";
    // The second is what transformers called it until 4.56, and reads to this day.
    const bool is_new = changed.contains("dtype");
    const bool is_old = !is_new || changed.contains("torch_dtype");
    for (const auto& [member, is_wanted] : {std::pair("dtype", is_new), {"torch_dtype", is_old}}) {
      if (is_wanted) {
        remove_member(changed, member);
        changed[member] = name;
      }
    }
  }
  const std::string sparsity_key(kActivationSparsityMember);
  if (weights.drops_alphas || weights.sparsity) {
    remove_member(changed, sparsity_key);
  }
  JsonDocument sparsity;
  if (weights.sparsity) {
    sparsity = parse_json(to_json(*weights.sparsity), sparsity_key, kMaxDepth);
    changed[sparsity_key].swap(sparsity.root());
  }
  return changed == config ? std::nullopt : std::optional(changed.dump(2) + "\n");
}

}  // namespace sparsellm
