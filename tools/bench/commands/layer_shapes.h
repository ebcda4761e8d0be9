#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sparsellm {

// Of the weights of linear layers, out and in; each once.
using LayerShapes = std::vector<std::pair<int64_t, int64_t>>;

// Unless it is there.
void add_layer_shape(std::pair<int64_t, int64_t> shape, LayerShapes& shapes);

// Of --shape. Throws UsageError.
LayerShapes parse_layer_shapes(const std::vector<std::string>& texts);

}  // namespace sparsellm
