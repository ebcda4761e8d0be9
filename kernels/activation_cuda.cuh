#pragma once

#include "kernels/activation.h"

namespace sparsellm {

// One value; the kinds are explained in kernels/activation.h.
__device__ inline float activated(Activation::Kind kind, float threshold, float x) {
  switch (kind) {
    case Activation::Kind::none:
      return x;
    case Activation::Kind::relu:
      return x > 0.0f || isnan(x) ? x : 0.0f;
    case Activation::Kind::gelu:
      return isinf(x) && x < 0.0f ? 0.0f : 0.5f * x * erfcf(-0.70710678118654752f * x);
    case Activation::Kind::gelu_tanh: {
      // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u))
      const float twice_u = 1.5957691216057308f * (x + 0.044715f * x * x * x);
      return isinf(x) && x < 0.0f ? 0.0f : x / (1.0f + expf(-twice_u));
    }
    case Activation::Kind::silu:
      return isinf(x) && x < 0.0f ? 0.0f : x / (1.0f + expf(-x));
    case Activation::Kind::fatrelu:
      return x > threshold || isnan(x) ? x : 0.0f;
  }
  return x;
}

}  // namespace sparsellm
