#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace sparsellm {

// Formats of linear layers, names of sparse/registry.h, by the name of the weight of a layer's
// first part: "model.layers.3.self_attn.q_proj.weight" for q, k and v, which the engine joins.
using LayerFormats = std::map<std::string, std::string, std::less<>>;

// That of a layer; `other` for one that is not there.
inline const std::string& format_of(const LayerFormats& formats, std::string_view first_weight,
                                    const std::string& other) {
  const auto found = formats.find(first_weight);
  return found == formats.end() ? other : found->second;
}

}  // namespace sparsellm
