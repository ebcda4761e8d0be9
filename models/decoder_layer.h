#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "models/attention.h"
#include "models/mlp.h"
#include "models/norm.h"

namespace sparsellm {

// Rows of a step that go through the products of a layer by themselves.
struct RowPart {
  int64_t begin = 0;
  int64_t count = 0;
  PagedBatch batch;  // for Mlp::forward: of parts of a step its positions and generated rows alone

  Tensor of(const Tensor& rows) const { return rows.rows(begin, count); }
};

// What all layers of a step share.
struct LayerInputs {
  PagedBatch batch;
  Tensor cos_sin;              // see SelfAttention
  std::vector<RowPart> parts;  // all rows, in their order
  bool first = false;          // layer: nothing is to be added to x yet
};

// Two halves of a long prompt where sums over ranks of tensors like these rows can be deferred
// (Communicator::Deferral): while those of one half travel, the products of the other run. Else all
// rows in one.
std::vector<RowPart> row_parts(const PagedBatch& batch, const Tensor& delta,
                               const ExecContext& ctx);

// Those of the first layer, all rows in one part. rope_frequencies f32 [head_dim / 2]
// (kernels/rope.h), or empty: no rotary positions. Their angles are a tensor of `scratch`.
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
  // addition is part of the norm that follows. If sums over ranks are deferred, those of delta,
  // part by part, have yet to be finished, too.
  void forward(Tensor x, const LayerInputs& inputs, const KvLayer& kv, Tensor delta,
               ExecContext& ctx) const;

  int64_t workspace_bytes(int64_t tokens, DType dtype, Device device, Sums sums) const;

  // Its linear layers with the names that reports give them: "qkv", "attention_out", "gate_up" or
  // "up", "down". A rank without neurons has only the first two.
  struct NamedLinear {
    std::string_view name;
    const Linear* linear;
  };
  std::vector<NamedLinear> linears() const;
};

}  // namespace sparsellm
