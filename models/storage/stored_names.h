#pragma once

#include <string_view>
#include <vector>

namespace sparsellm {

// What a checkpoint may call the tensor `name` of a model, in the order to look it up: as given,
// and without a leading "model." or "model.decoder.", which checkpoints of the model without its
// head lack. Views of `name`.
inline std::vector<std::string_view> stored_names(std::string_view name) {
  std::vector<std::string_view> names;
  for (std::string_view prefix : {"", "model.", "model.decoder."}) {
    if (name.starts_with(prefix)) {
      names.push_back(name.substr(prefix.size()));
    }
  }
  return names;
}

}  // namespace sparsellm
