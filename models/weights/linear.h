#pragma once

#include <memory>

#include "kernels/base/buffer.h"
#include "kernels/base/exec.h"
#include "kernels/base/step_trace.h"
#include "kernels/epilogue.h"
#include "sparse/weight_matrix.h"

namespace sparsellm {

// y [tokens, out] = activation(x [tokens, in] * W^T + bias).
struct Linear {
  std::unique_ptr<WeightMatrix> weight;
  OwnedTensor bias;  // [out], or empty
  Activation activation;

  void forward(const Tensor& x, Tensor y, ExecContext& ctx) const {
    forward(x, activation, y, ctx);
  }
  // With another activation than its own.
  void forward(const Tensor& x, const Activation& instead, Tensor y, ExecContext& ctx) const {
    const TraceScope traced(ctx, "linear layers", weight->format());
    weight->matmul(x, y, {.bias = bias.view, .activation = instead}, ctx);
  }

  int64_t workspace_bytes(int64_t tokens, Sums sums) const {
    return weight->workspace_bytes(tokens, sums);
  }
};

}  // namespace sparsellm
