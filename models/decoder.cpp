#include "models/decoder.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/embedding.h"
#include "kernels/rope.h"

namespace sparsellm {

Decoder::Decoder(Parts parts, DType activation_dtype)
    : parts_(std::move(parts)), activation_dtype_(activation_dtype) {
  require(!parts_.layers.empty(), "a decoder needs at least one layer");
}

void Decoder::forward(const StepInputs& step, const KvCache& kv, Tensor hidden,
                      ExecContext& ctx) const {
  auto scratch = ctx.workspace.scope();
  const PagedBatch& batch = step.batch;
  const EmbeddingTables tables{.tokens = parts_.token_embedding.view,
                               .positions = parts_.position_embedding.view,
                               .position_offset = parts_.position_offset};
  embedding(step.token_ids, batch.positions, tables, hidden, ctx);

  Tensor cos_sin;
  if (const Tensor& frequencies = parts_.rope_frequencies.view; !frequencies.empty()) {
    cos_sin = scratch.tensor(DType::f32, {batch.tokens(), 2 * frequencies.size(0)});
    rope_angles(batch.positions, frequencies, cos_sin, ctx);
  }
  for (size_t i = 0; i < parts_.layers.size(); ++i) {
    parts_.layers[i].forward(hidden, batch, cos_sin, kv.layer(static_cast<int64_t>(i)), ctx);
  }
}

void Decoder::logits(const Tensor& hidden, const Tensor& rows, Tensor logits,
                     ExecContext& ctx) const {
  auto scratch = ctx.workspace.scope();
  Tensor selected = scratch.tensor(hidden.dtype(), {rows.size(0), hidden.size(1)});
  const EmbeddingTables rows_of_hidden{.tokens = hidden, .positions = {}, .position_offset = 0};
  embedding(rows, {}, rows_of_hidden, selected, ctx);
  parts_.final_norm.forward(selected, selected, ctx);
  parts_.head.forward(selected, logits, ctx);
}

KvShape Decoder::kv_shape() const {
  const SelfAttention& attention = parts_.layers.front().attention;
  return {.layers = static_cast<int64_t>(parts_.layers.size()),
          .kv_heads = attention.kv_heads,
          .head_dim = attention.head_dim,
          .dtype = activation_dtype_};
}

int64_t Decoder::workspace_bytes(int64_t tokens, int64_t logit_rows) const {
  int64_t layer = 0;
  for (const DecoderLayer& l : parts_.layers) {
    layer = std::max(layer, l.workspace_bytes(tokens, hidden_size(), activation_dtype_));
  }
  const int64_t head_dim = parts_.layers.front().attention.head_dim;
  const int64_t angles = Workspace::tensor_bytes(DType::f32, {tokens, head_dim});
  return std::max(layer + angles,
                  Workspace::tensor_bytes(activation_dtype_, {logit_rows, hidden_size()}));
}

}  // namespace sparsellm
