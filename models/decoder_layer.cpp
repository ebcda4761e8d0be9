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

int64_t layer_inputs_bytes(int64_t tokens, const Tensor& rope_frequencies) {
  // Where shapes alone are known, there is no memory behind them.
  return rope_frequencies.rank() == 0
             ? 0
             : Workspace::tensor_bytes(DType::f32, {tokens, 2 * rope_frequencies.size(0)});
}

void DecoderLayer::forward(Tensor x, const LayerInputs& inputs, const KvLayer& kv, Tensor delta,
                           ExecContext& ctx) const {
  if (inputs.first) {
    attention_norm.forward(x, delta, ctx);
  } else {
    attention_norm.add_forward(delta, x, delta, ctx);
  }
  attention.forward(delta, inputs.batch, inputs.cos_sin, kv, delta, ctx);
  mlp_norm.add_forward(delta, x, delta, ctx);
  mlp->forward(delta, inputs.batch, delta, ctx);
}

int64_t DecoderLayer::workspace_bytes(int64_t tokens, DType dtype, Device device, Sums sums) const {
  return std::max(attention.workspace_bytes(tokens, dtype, device, sums),
                  mlp->workspace_bytes(tokens, dtype, sums));
}

}  // namespace sparsellm
