#include "models/decoder_layer.h"

#include <algorithm>

namespace sparsellm {

void DecoderLayer::forward(Tensor x, const LayerInputs& inputs, const KvLayer& kv, Tensor delta,
                           ExecContext& ctx) const {
  auto scratch = ctx.workspace.scope();
  Tensor normed = scratch.like(delta);

  if (inputs.first) {
    attention_norm.forward(x, normed, ctx);
  } else {
    attention_norm.add_forward(delta, x, normed, ctx);
  }
  attention.forward(normed, inputs.batch, inputs.cos_sin, kv, delta, ctx);
  mlp_norm.add_forward(delta, x, normed, ctx);
  mlp->forward(normed, delta, ctx);
}

int64_t DecoderLayer::workspace_bytes(int64_t tokens, int64_t hidden, DType dtype,
                                      Device device) const {
  return Workspace::tensor_bytes(dtype, {tokens, hidden}) +
         std::max(attention.workspace_bytes(tokens, dtype, device),
                  mlp->workspace_bytes(tokens, dtype));
}

}  // namespace sparsellm
