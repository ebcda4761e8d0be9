#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/dtype.h"
#include "kernels/zero_pattern.h"
#include "models/weights/layer_formats.h"

namespace sparsellm {

// What RandomLoader makes.
struct RandomWeights {
  DType dtype = DType::f16;  // of all weights; on CUDA also what the model computes in
  double sparsity = 0.0;     // in [0, 1]: the fraction of zeros in the weights of linear layers
  ZeroPattern pattern = {};  // of these zeros, in each of the tensors that a layer joins by rows
  uint64_t seed = 0;
  std::string format = {};   // of linear layers, a name of sparse/registry.h; empty: dense
  LayerFormats layers = {};  // of these `format` says nothing
};

}  // namespace sparsellm
