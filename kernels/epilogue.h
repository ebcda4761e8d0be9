#pragma once

#include "kernels/activation.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// What a matrix product does to its result before it is stored: y = activation(y + bias).
struct Epilogue {
  Tensor bias;  // [out], any floating dtype, or empty
  Activation activation;
};

}  // namespace sparsellm
