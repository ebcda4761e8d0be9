#include "models/decoder_layer.h"

#include <algorithm>

#include "kernels/base/comm.h"
#include "kernels/rope.h"
#include "models/weights/shares.h"
#include "models/weights/sum_over_ranks.h"

namespace sparsellm {
namespace {

// Of the rows of a step that are worth it: products of fewer rows lose more than the sums take.
std::vector<Range> halves_of(int64_t tokens) {
  constexpr int64_t kLong = 1024;
  constexpr int64_t kTile = 128;  // rows of products of many of them
  if (tokens < kLong) {
    return {};
  }
  const int64_t half = (tokens / 2 + kTile - 1) / kTile * kTile;
  return {{.begin = 0, .count = half}, {.begin = half, .count = tokens - half}};
}

}  // namespace

LayerInputs layer_inputs(const PagedBatch& batch, const Tensor& rope_frequencies,
                         Workspace::Scope& scratch, ExecContext& ctx) {
  LayerInputs inputs{.batch = batch,
                     .cos_sin = {},
                     .parts = {{.begin = 0, .count = batch.tokens(), .batch = batch}},
                     .first = true};
  if (!rope_frequencies.empty()) {
    inputs.cos_sin = scratch.tensor(DType::f32, {batch.tokens(), 2 * rope_frequencies.size(0)});
    rope_angles(batch.positions, rope_frequencies, inputs.cos_sin, ctx);
  }
  return inputs;
}

std::vector<RowPart> row_parts(const PagedBatch& batch, const Tensor& delta,
                               const ExecContext& ctx) {
  std::vector<RowPart> parts;
  if (ctx.comm != nullptr && !batch.decode) {
    for (const Range& half : halves_of(batch.tokens())) {
      PagedBatch rows;
      rows.positions = batch.positions.rows(half.begin, half.count);
      rows.generated = std::clamp<int64_t>(batch.generated - half.begin, 0, half.count);
      parts.push_back({.begin = half.begin, .count = half.count, .batch = rows});
    }
  }
  const bool deferred = std::ranges::all_of(
      parts, [&](const RowPart& part) { return ctx.comm->can_defer(part.of(delta), ctx); });
  if (parts.empty() || !deferred) {
    parts = {{.begin = 0, .count = batch.tokens(), .batch = batch}};
  }
  return parts;
}

int64_t layer_inputs_bytes(int64_t tokens, const Tensor& rope_frequencies) {
  // Where shapes alone are known, there is no memory behind them.
  return rope_frequencies.rank() == 0
             ? 0
             : Workspace::tensor_bytes(DType::f32, {tokens, 2 * rope_frequencies.size(0)});
}

void DecoderLayer::forward(Tensor x, const LayerInputs& inputs, const KvLayer& kv, Tensor delta,
                           ExecContext& ctx) const {
  {
    auto scratch = ctx.workspace.scope();
    const SelfAttention::Activations rows = attention.activations(delta, scratch);
    for (const RowPart& part : inputs.parts) {
      const Tensor part_delta = part.of(delta);
      if (inputs.first) {
        attention_norm.forward(part.of(x), part_delta, ctx);
      } else {
        finish_sum_over_ranks(part_delta, ctx);
        attention_norm.add_forward(part_delta, part.of(x), part_delta, ctx);
      }
      attention.qkv.forward(part_delta, part.of(rows.joined), ctx);
    }
    attention.mix(rows, inputs.batch, inputs.cos_sin, kv, ctx);
    for (const RowPart& part : inputs.parts) {
      attention.out.forward(part.of(rows.mixed), part.of(delta), ctx);
    }
  }
  for (const RowPart& part : inputs.parts) {
    const Tensor part_delta = part.of(delta);
    finish_sum_over_ranks(part_delta, ctx);
    mlp_norm.add_forward(part_delta, part.of(x), part_delta, ctx);
    mlp->forward(part_delta, part.batch, part_delta, ctx);
  }
}

int64_t DecoderLayer::workspace_bytes(int64_t tokens, DType dtype, Device device, Sums sums) const {
  int64_t most = std::max(attention.workspace_bytes(tokens, dtype, device, sums),
                          mlp->workspace_bytes(tokens, dtype, sums));
  for (const Range& half : halves_of(tokens)) {
    const int64_t projections = std::max(attention.qkv.workspace_bytes(half.count, sums),
                                         attention.out.workspace_bytes(half.count, sums));
    most = std::max({most, attention.activation_bytes(tokens, dtype) + projections,
                     mlp->workspace_bytes(half.count, dtype, sums)});
  }
  return most;
}

std::vector<DecoderLayer::NamedLinear> DecoderLayer::linears() const {
  std::vector<NamedLinear> all{{.name = "qkv", .linear = &attention.qkv},
                               {.name = "attention_out", .linear = &attention.out}};
  const std::vector<const Linear*> of_mlp = mlp->linears();
  if (of_mlp.empty()) {
    return all;
  }
  const Linear* const up = of_mlp.front();
  const Linear* const down = of_mlp.back();
  // A gated MLP has two rows of its first weight for each neuron.
  const bool gated = up->weight->out() > down->weight->in();
  all.push_back({.name = gated ? "gate_up" : "up", .linear = up});
  all.push_back({.name = "down", .linear = down});
  return all;
}

}  // namespace sparsellm
