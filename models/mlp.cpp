#include "models/mlp.h"

#include <algorithm>
#include <utility>

namespace sparsellm {

EmptyMlp::EmptyMlp(Linear down) : down_(std::move(down)) {}

void EmptyMlp::forward(const Tensor&, const PagedBatch&, Tensor y, ExecContext& ctx) const {
  down_.forward({}, y, ctx);
}

PlainMlp::PlainMlp(Linear up, Linear down) : up_(std::move(up)), down_(std::move(down)) {}

void PlainMlp::forward(const Tensor& x, const PagedBatch&, Tensor y, ExecContext& ctx) const {
  auto scratch = ctx.workspace.scope();
  Tensor hidden = scratch.tensor(x.dtype(), {x.size(0), up_.weight->out()});
  up_.forward(x, hidden, ctx);
  down_.forward(hidden, y, ctx);
}

int64_t PlainMlp::workspace_bytes(int64_t tokens, DType dtype, Sums sums) const {
  return Workspace::tensor_bytes(dtype, {tokens, up_.weight->out()}) +
         std::max(up_.workspace_bytes(tokens, sums), down_.workspace_bytes(tokens, sums));
}

GatedMlp::GatedMlp(Linear gate_up, Activation activation, Linear down)
    : gate_up_(std::move(gate_up)), activation_(activation), down_(std::move(down)) {}

void GatedMlp::forward(const Tensor& x, const PagedBatch&, Tensor y, ExecContext& ctx) const {
  auto scratch = ctx.workspace.scope();
  Tensor joined = scratch.tensor(x.dtype(), {x.size(0), gate_up_.weight->out()});
  Tensor hidden = scratch.tensor(x.dtype(), {x.size(0), down_.weight->in()});
  gate_up_.forward(x, joined, ctx);
  activate_gated(activation_, joined, hidden, ctx);
  down_.forward(hidden, y, ctx);
}

int64_t GatedMlp::workspace_bytes(int64_t tokens, DType dtype, Sums sums) const {
  return Workspace::tensor_bytes(dtype, {tokens, gate_up_.weight->out()}) +
         Workspace::tensor_bytes(dtype, {tokens, down_.weight->in()}) +
         std::max(gate_up_.workspace_bytes(tokens, sums), down_.workspace_bytes(tokens, sums));
}

}  // namespace sparsellm
