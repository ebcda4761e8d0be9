#pragma once

#include <cstdint>
#include <memory>

#include "models/attention.h"
#include "models/mlp.h"
#include "models/norm.h"

namespace sparsellm {

// What all layers of a step share.
struct LayerInputs {
  PagedBatch batch;
  Tensor cos_sin;      // see SelfAttention
  bool first = false;  // layer: nothing is to be added to x yet
};

// Those of the first layer. rope_frequencies f32 [head_dim / 2] (kernels/rope.h), or empty: no
// rotary positions. Their angles are a tensor of `scratch`.
LayerInputs layer_inputs(const PagedBatch& batch, const Tensor& rope_frequencies,
                         Workspace::Scope& scratch, ExecContext& ctx);
// What these take from the workspace.
int64_t layer_inputs_bytes(int64_t tokens, const Tensor& rope_frequencies);

// One pre-norm transformer block. Architectures differ in how it is put together, not in what it
// does.
struct DecoderLayer {
  Norm attention_norm;
  SelfAttention attention;
  Norm mlp_norm;
  std::unique_ptr<Mlp> mlp;

  // x f32 [tokens, hidden] is the residual stream. delta [tokens, hidden], in the dtype of
  // activations, is what the block before has yet to add to it; then what this one has. So every
  // addition is part of the norm that follows.
  void forward(Tensor x, const LayerInputs& inputs, const KvLayer& kv, Tensor delta,
               ExecContext& ctx) const;

  int64_t workspace_bytes(int64_t tokens, DType dtype, Device device, Sums sums) const;
};

}  // namespace sparsellm
