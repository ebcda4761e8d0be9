#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace sparsellm {

// What a linear layer is in, or is to be.
struct LayerFormat {
  std::string format;  // a name of sparse/registry.h
  // Of a weight that is encoded for it (LayoutOptions::layout); empty: as the format's rule has it,
  // or in that of the encoding that it is made from.
  std::string layout = {};

  bool operator==(const LayerFormat&) const = default;
};

// "tca_bme", or with a layout "tca_bme for size".
inline std::string to_string(const LayerFormat& in) {
  return in.layout.empty() ? in.format : in.format + " for " + in.layout;
}

// By the name of the weight of a layer's first part: "model.layers.3.self_attn.q_proj.weight" for
// q, k and v, which the engine joins.
using LayerFormats = std::map<std::string, LayerFormat, std::less<>>;

// That of a layer; `other` for one that is not there.
inline LayerFormat format_of(const LayerFormats& formats, std::string_view first_weight,
                             const std::string& other) {
  const auto found = formats.find(first_weight);
  return found == formats.end() ? LayerFormat{.format = other} : found->second;
}

}  // namespace sparsellm
