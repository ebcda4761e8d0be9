#include "models/foreign_tensors.h"

#include <algorithm>
#include <iterator>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "models/architectures.h"

namespace sparsellm {

bool is_left_out(std::string_view tensor, const ModelConfig& config) {
  return std::ranges::any_of(architecture_of(config).left_out,
                             [&](std::string_view end) { return tensor.ends_with(end); });
}

std::vector<std::string> left_out_tensors(const Checkpoint& checkpoint, const ModelConfig& config) {
  std::vector<std::string> names;
  std::ranges::copy_if(checkpoint.names(), std::back_inserter(names),
                       [&](const std::string& name) { return is_left_out(name, config); });
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
