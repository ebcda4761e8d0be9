#include "models/foreign_tensors.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "models/architectures.h"
#include "models/linear_layers.h"
#include "models/storage/stored_names.h"

namespace sparsellm {
namespace {

constexpr std::string_view kActivationScales[] = {
    ".input_scale",  ".input_zero_point",  ".input_global_scale",
    ".output_scale", ".output_zero_point", ".q_scale",
    ".k_scale",      ".v_scale",           ".q_zero_point",
    ".k_zero_point", ".v_zero_point",
};

bool ends_with_any(std::string_view tensor, std::span<const std::string_view> ends) {
  return std::ranges::any_of(ends, [&](std::string_view end) { return tensor.ends_with(end); });
}

}  // namespace

std::vector<std::string_view> left_out_ends(const ModelConfig& config) {
  const std::span<const std::string_view> predictors = architecture_of(config).left_out;
  std::vector<std::string_view> ends(predictors.begin(), predictors.end());
  if (config.is_quantized) {
    ends.insert(ends.end(), std::begin(kActivationScales), std::end(kActivationScales));
  }
  return ends;
}

bool is_left_out(std::string_view tensor, const ModelConfig& config) {
  return ends_with_any(tensor, left_out_ends(config));
}

std::vector<std::string> left_out_tensors(const Checkpoint& checkpoint, const ModelConfig& config) {
  std::vector<std::string> names;
  std::ranges::copy_if(checkpoint.names(), std::back_inserter(names), [&](const std::string& name) {
    return ends_with_any(name, architecture_of(config).left_out);
  });
  return names;
}

std::string left_out_warning(std::span<const std::string> names) {
  if (names.empty()) {
    return "";
  }
  return fmt::format(
      "the checkpoint's own predictors of zero neurons are left out ({} tensors, such as {}): "
      "signs predict them here (--activation-sparsity)",
      names.size(), quote(names.front()));
}

void require_only_linear_layers_quantized(const Checkpoint& checkpoint, const ModelConfig& config) {
  std::set<std::string, std::less<>> modules;
  for (const LinearLayer& layer : linear_layers(config)) {
    for (const std::string_view stored : stored_names(layer.module)) {
      modules.emplace(stored);
    }
  }
  for (const std::string& name : checkpoint.names()) {
    for (const std::string_view end : {".weight_packed", ".weight_scale"}) {
      const std::string_view module = std::string_view(name).substr(
          0, name.ends_with(end) ? name.size() - end.size() : std::string_view::npos);
      require(!name.ends_with(end) || modules.contains(module),
              "{}: the tensor {} is of a quantised weight that is no linear layer of a decoder "
              "block, which is not supported: heads and embeddings have to be left out of the "
              "quantisation",
              checkpoint.directory().string(), quote(name));
    }
  }
}

void require_separate_projections(const Checkpoint& checkpoint) {
  for (const std::string& name : checkpoint.names()) {
    for (const std::string_view joined : {"qkv_proj.weight", "gate_up_proj.weight"}) {
      require(!name.ends_with(joined),
              "{}: the tensor {} has several projections in one, which is not supported: they have "
              "to be stored apart (q_proj, k_proj, v_proj; gate_proj, up_proj)",
              checkpoint.directory().string(), quote(name));
    }
  }
}

}  // namespace sparsellm
