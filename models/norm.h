#pragma once

#include "kernels/base/buffer.h"
#include "kernels/base/exec.h"
#include "kernels/norm.h"
#include "models/config.h"

namespace sparsellm {

// LayerNorm or RMSNorm with its parameters.
struct Norm {
  ModelConfig::Norm kind = ModelConfig::Norm::rms_norm;
  OwnedTensor weight;  // [hidden]
  OwnedTensor bias;    // [hidden]; LayerNorm only
  float epsilon = 0.0f;
  float scale = 1.0f;        // kernels/norm.h
  float delta_scale = 1.0f;  // there

  // y = norm(x), x being the residual stream.
  void forward(const Tensor& x, Tensor y, ExecContext& ctx) const {
    switch (kind) {
      case ModelConfig::Norm::layer_norm:
        return layer_norm(x, params(), y, ctx);
      case ModelConfig::Norm::rms_norm:
        return rms_norm(x, params(), y, ctx);
    }
  }

  // x += delta_scale * delta; y = norm(x).
  void add_forward(const Tensor& delta, Tensor x, Tensor y, ExecContext& ctx) const {
    switch (kind) {
      case ModelConfig::Norm::layer_norm:
        return add_layer_norm(delta, x, params(), y, ctx);
      case ModelConfig::Norm::rms_norm:
        return add_rms_norm(delta, x, params(), y, ctx);
    }
  }

 private:
  NormParams params() const {
    return {.weight = weight.view,
            .bias = bias.view,
            .epsilon = epsilon,
            .scale = scale,
            .delta_scale = delta_scale};
  }
};

}  // namespace sparsellm
