#pragma once

#include <memory>

#include "kernels/base/buffer.h"
#include "kernels/base/exec.h"
#include "kernels/base/step_trace.h"
#include "kernels/epilogue.h"
#include "models/weights/sum_over_ranks.h"
#include "sparse/weight_matrix.h"

namespace sparsellm {

// y [tokens, out] = activation(x [tokens, in] * W^T + bias).
struct Linear {
  std::unique_ptr<WeightMatrix> weight;
  OwnedTensor bias;  // [out], or empty
  Activation activation;
  // Each rank has some columns of W, and rank 0 the bias: their products are added up. Without a
  // communicator in the context y is the rank's own part of the sum.
  bool sums_over_ranks = false;

  void forward(const Tensor& x, Tensor y, ExecContext& ctx) const {
    forward(x, activation, y, ctx);
  }
  // With another activation than its own.
  void forward(const Tensor& x, const Activation& instead, Tensor y, ExecContext& ctx) const {
    const TraceScope traced(ctx, "linear layers", weight->format());
    if (!sums_over_ranks) {
      weight->matmul(x, y, {.bias = bias.view, .activation = instead}, ctx);
      return;
    }
    weight->matmul(x, y, {.bias = bias.view, .activation = {}}, ctx);
    sum_over_ranks(y, ctx);
    if (instead.kind != Activation::Kind::none) {
      require(ctx.comm == nullptr || !ctx.comm->defers_sums(),
              "an activation of a sum that is deferred");
      activate(instead, y, ctx);
    }
  }

  int64_t workspace_bytes(int64_t tokens, Sums sums) const {
    return weight->workspace_bytes(tokens, sums);
  }
};

}  // namespace sparsellm
