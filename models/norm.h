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

  // y = norm(x), x being the residual stream.
  void forward(const Tensor& x, Tensor y, ExecContext& ctx) const {
    switch (kind) {
      case ModelConfig::Norm::layer_norm:
        return layer_norm(x, weight.view, bias.view, epsilon, y, ctx);
      case ModelConfig::Norm::rms_norm:
        return rms_norm(x, weight.view, epsilon, y, ctx);
    }
  }

  // x += delta; y = norm(x).
  void add_forward(const Tensor& delta, Tensor x, Tensor y, ExecContext& ctx) const {
    const NormParams params{.weight = weight.view, .bias = bias.view, .epsilon = epsilon};
    switch (kind) {
      case ModelConfig::Norm::layer_norm:
        return add_layer_norm(delta, x, params, y, ctx);
      case ModelConfig::Norm::rms_norm:
        return add_rms_norm(delta, x, params, y, ctx);
    }
  }
};

}  // namespace sparsellm
