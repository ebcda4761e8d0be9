#include "models/decoder_layer.h"

#include <algorithm>

#include "kernels/add.h"

namespace sparsellm {

void DecoderLayer::forward(Tensor x, const PagedBatch& batch, const Tensor& cos_sin,
                           const KvLayer& kv, ExecContext& ctx) const {
  auto scratch = ctx.workspace.scope();
  Tensor normed = scratch.like(x);
  Tensor delta = scratch.like(x);

  attention_norm.forward(x, normed, ctx);
  attention.forward(normed, batch, cos_sin, kv, delta, ctx);
  add(delta, x, ctx);

  mlp_norm.forward(x, normed, ctx);
  mlp->forward(normed, delta, ctx);
  add(delta, x, ctx);
}

int64_t DecoderLayer::workspace_bytes(int64_t tokens, int64_t hidden, DType dtype) const {
  return 2 * Workspace::tensor_bytes(dtype, {tokens, hidden}) +
         std::max(attention.workspace_bytes(tokens, dtype), mlp->workspace_bytes(tokens, dtype));
}

}  // namespace sparsellm
