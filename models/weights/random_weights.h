#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "kernels/base/dtype.h"
#include "kernels/zero_pattern.h"
#include "models/weights/layer_formats.h"

namespace sparsellm {

// The weight of a linear layer in RandomWeights.
struct RandomLinear {
  double sparsity = 0.0;     // in [0, 1]: the fraction of zeros
  ZeroPattern pattern = {};  // of these zeros
  // A name of sparse/registry.h; empty: dense; "auto" is for an engine to choose
  // (engine/format_selection.h), and a loader refuses it.
  std::string format = {};
  std::string records = {};  // where it comes to be in tca_bme (sparse/records_choice.h)

  bool operator==(const RandomLinear&) const = default;
};

// By the names of modules ("model.layers.3.mlp.up_proj").
using RandomLinears = std::map<std::string, RandomLinear, std::less<>>;

// What RandomLoader makes.
struct RandomWeights {
  DType dtype = DType::f16;  // of all weights; on CUDA also what the model computes in
  double sparsity = 0.0;     // in [0, 1]: the fraction of zeros in the weights of linear layers
  ZeroPattern pattern = {};  // of these zeros, in each of the tensors that a layer joins by rows
  uint64_t seed = 0;
  std::string format = {};   // of linear layers, as RandomLinear's
  std::string records = {};  // the same
  // Layers with a sparsity, pattern and format of their own, as models/random_plan.h has them.
  // Where several are joined by rows, their weight has the format and records of the first.
  RandomLinears planned = {};

  // Of the layer whose weight has this name ("model.layers.3.mlp.up_proj.weight").
  RandomLinear linear(std::string_view weight) const;
};

// Throws Error for a sparsity out of range, for a pattern that cannot have it, and for records that
// check_records() refuses.
void require_possible(const RandomWeights& weights);

// The same weights with all linear layers in one format.
RandomWeights in_format(RandomWeights weights, const LayerFormat& in);
// The same with those that are named in the formats that are given.
RandomWeights in_formats(RandomWeights weights, const LayerFormats& formats);

}  // namespace sparsellm
