#include "tools/bench/commands/layer_shapes.h"

#include <algorithm>

#include "tools/bench/args.h"

namespace sparsellm {

void add_layer_shape(std::pair<int64_t, int64_t> shape, LayerShapes& shapes) {
  if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) {
    shapes.push_back(shape);
  }
}

LayerShapes parse_layer_shapes(const std::vector<std::string>& texts) {
  LayerShapes shapes;
  for (const std::string& text : texts) {
    add_layer_shape(parse_shape("--shape", text), shapes);
  }
  return shapes;
}

}  // namespace sparsellm
