#include "models/decoder_layer.h"

#include <algorithm>

#include "kernels/rope.h"

namespace sparsellm {

LayerInputs layer_inputs(const PagedBatch& batch, const Tensor& rope_frequencies,
                         Workspace::Scope& scratch, ExecContext& ctx) {
  LayerInputs inputs{.batch = batch, .cos_sin = {}, .first = true};
  if (!rope_frequencies.empty()) {
    inputs.cos_sin = scratch.tensor(DType::f32, {batch.tokens(), 2 * rope_frequencies.size(0)});
    rope_angles(batch.positions, rope_frequencies, inputs.cos_sin, ctx);
  }
  return inputs;
}

int64_t layer_inputs_bytes(int64_t tokens, int64_t head_dim) {
  return Workspace::tensor_bytes(DType::f32, {tokens, head_dim});
}

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
