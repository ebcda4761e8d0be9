#include "models/sparse_mlp.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/neuron_observer.h"
#include "kernels/base/step_trace.h"
#include "sparse/activation/active_rows.h"
#include "sparse/dense/dense.h"
#include "sparse/dense/transposed.h"

namespace sparsellm {
namespace {

Linear view_of(std::unique_ptr<WeightMatrix> weight, const Tensor& bias,
               Activation activation = {}) {
  return {
      .weight = std::move(weight), .bias = {.buffer = {}, .view = bias}, .activation = activation};
}

// Rows [begin, begin + count) of a matrix or of a bias, which may be missing. Where shapes alone
// are known, there is no memory behind them.
Tensor part_of(const Tensor& whole, int64_t begin, int64_t count) {
  return whole.rank() == 0 ? Tensor() : whole.rows(whole.empty() ? 0 : begin, count);
}

}  // namespace

SparseMlp::SparseMlp(Parts parts) : parts_(std::move(parts)) {
  const Tensor& up = parts_.up.view;
  const Tensor& down = parts_.down.view;
  const Tensor& bias = parts_.up_bias.view;
  require(up.rank() == 2 && down.rank() == 2 && up.size(1) == down.size(1) &&
              (up.size(0) == down.size(0) || up.size(0) == 2 * down.size(0)),
          "an MLP with activation sparsity of up {} and transposed down {}", up.shape_string(),
          down.shape_string());
  constexpr int64_t kMostPredicted = 4;
  constexpr int64_t kMostExact = 1;
  most_rows_ = parts_.signs ? kMostPredicted : kMostExact;
  if (!down.empty()) {
    counters_ = make_neuron_counters(down.device());
  }
  const int64_t count = neurons();
  const int64_t first_up = gated() ? count : 0;
  gate_bias_ = part_of(bias, 0, count);
  up_bias_ = part_of(bias, first_up, count);
  const Tensor gate = part_of(up, 0, count);
  gate_rows_ = std::make_unique<DenseRows>(gate);
  up_rows_ = std::make_unique<DenseRows>(part_of(up, first_up, count));
  down_rows_ = std::make_unique<DenseRows>(down);
  const Activation of_gate = gated() ? Activation() : parts_.activation;
  gate_ = view_of(std::make_unique<DenseWeight>(gate), gate_bias_, of_gate);
  // Where gate and up have a ReLU each, both are part of their joined product.
  const Activation of_up = parts_.relu_up ? Activation{.kind = Activation::Kind::relu} : of_gate;
  Linear whole_up = view_of(std::make_unique<DenseWeight>(up), bias, of_up);
  Linear whole_down = view_of(std::make_unique<TransposedWeight>(down), parts_.down_bias.view);
  if (gated()) {
    dense_ =
        std::make_unique<GatedMlp>(std::move(whole_up), parts_.activation, std::move(whole_down));
  } else {
    dense_ = std::make_unique<PlainMlp>(std::move(whole_up), std::move(whole_down));
  }
}

void SparseMlp::forward(const Tensor& x, const PagedBatch& batch, Tensor y,
                        ExecContext& ctx) const {
  const int64_t generated = batch.generated;
  const int64_t rest = x.size(0) - generated;
  const bool is_mixed = rest > 0 && generated > 0;
  if (is_mixed && ctx.device.is_cuda() && ctx.sums == Sums::fastest) {
    // Rows of prompts need all weights, which the others may use, too.
    forward_densely(x, batch.positions.rows(0, generated), y, ctx);
  } else {
    if (rest > 0) {  // the dense MLP does not look at the batch
      dense_->forward(x.rows(generated, rest), batch, y.rows(generated, rest), ctx);
    }
    if (generated > 0) {
      forward_generated(x.rows(0, generated), batch.positions.rows(0, generated),
                        y.rows(0, generated), ctx);
    }
  }
  if (parts_.sums_over_ranks) {  // once for all rows: the dense MLP does not
    sum_over_ranks(y, ctx);
  }
}

void SparseMlp::forward_generated(const Tensor& x, const Tensor& positions, Tensor y,
                                  ExecContext& ctx) const {
  const bool by_rows = x.size(0) <= most_rows_ || ctx.sums == Sums::batch_invariant;
  if (ctx.device.is_cuda() && !by_rows) {
    forward_densely(x, positions, y, ctx);
  } else if (parts_.signs) {
    forward_predicted(x, positions, prediction(), y, ctx);
  } else {
    forward_exact(x, positions, y, ctx);
  }
}

void SparseMlp::forward_densely(const Tensor& x, const Tensor& positions, Tensor y,
                                ExecContext& ctx) const {
  parts_.signs ? forward_masked(x, positions, prediction(), y, ctx)
               : dense_->forward(x, {}, y, ctx);
}

void SparseMlp::forward_predicted(const Tensor& x, const Tensor& positions, const Prediction& how,
                                  Tensor y, ExecContext& ctx) const {
  if (forward_fused(x, positions, how, y, ctx)) {
    return;
  }
  const TraceScope traced(ctx, "MLP rows");
  auto scratch = ctx.workspace.scope();
  const Tensor active = scratch.tensor(DType::u8, {x.size(0), neurons()});
  const Tensor h = scratch.tensor(x.dtype(), {x.size(0), neurons()});
  predict(x, how.by, active, ctx);
  compute_active(x, active, h, ctx);
  down_rows(h, *down_rows_, parts_.down_bias.view,
            {.counters = how.counters, .positions = positions, .active = active}, y, ctx);
}

void SparseMlp::forward_exact(const Tensor& x, const Tensor& positions, Tensor y,
                              ExecContext& ctx) const {
  const TraceScope traced(ctx, "MLP rows");
  auto scratch = ctx.workspace.scope();
  const Tensor h = scratch.tensor(x.dtype(), {x.size(0), neurons()});
  gate_.forward(x, h, ctx);
  if (ctx.neurons != nullptr) {
    activate(parts_.activation, h, ctx);  // again, if it was part of gate_, which changes nothing
    ctx.neurons->observe({.layer = parts_.layer,
                          .first = parts_.first_neuron,
                          .x = x,
                          .weight = part_of(parts_.up.view, 0, neurons()),
                          .values = h},
                         ctx);
  }
  forward_gates(x, h, {.counters = counters(), .positions = positions, .active = {}}, h, y, ctx);
}

void SparseMlp::forward_gates(const Tensor& x, const Tensor& gates, const NeuronTally& tally,
                              Tensor h, Tensor y, ExecContext& ctx) const {
  if (!gated()) {
    down_rows(gates, *down_rows_, parts_.down_bias.view, tally, y, ctx);
    return;
  }
  FusedMlp mlp = fused({.by = {}, .counters = tally.counters});
  mlp.gates = gates;
  if (fused_mlp_fits(mlp, ctx)) {
    fused_mlp(x, tally.positions, mlp, y, ctx);
    return;
  }
  up_rows(x,
          {.up = *up_rows_,
           .up_bias = up_bias_,
           .activation = parts_.activation,
           .relu_up = parts_.relu_up},
          gates, h, ctx);
  down_rows(h, *down_rows_, parts_.down_bias.view, tally, y, ctx);
}

bool SparseMlp::forward_fused(const Tensor& x, const Tensor& positions, const Prediction& how,
                              Tensor y, ExecContext& ctx) const {
  const FusedMlp mlp = fused(how);
  if (!fused_mlp_fits(mlp, ctx)) {
    return false;
  }
  const TraceScope traced(ctx, "MLP rows");
  fused_mlp(x, positions, mlp, y, ctx);
  return true;
}

void SparseMlp::forward_masked(const Tensor& x, const Tensor& positions, const Prediction& how,
                               Tensor y, ExecContext& ctx) const {
  const std::vector<const Linear*> linears = dense_->linears();  // gate and up, and down
  const int64_t rows = x.size(0);
  const int64_t generated = positions.empty() ? rows : positions.size(0);
  auto scratch = ctx.workspace.scope();
  const Tensor active = scratch.tensor(DType::u8, {generated, neurons()});
  const Tensor h = scratch.tensor(x.dtype(), {rows, neurons()});
  const NeuronTally tally{.counters = how.counters, .positions = positions, .active = active};
  // Only the activation needs the prediction. It comes first all the same: the dense product is the
  // launch that has the most to load before it waits for those in front of it.
  predict(x.rows(0, generated), how.by, active, ctx);
  const int64_t prompts = rows - generated;
  if (gated()) {
    const Tensor joined = scratch.tensor(x.dtype(), {rows, 2 * neurons()});
    linears.front()->forward(x, joined, ctx);
    activate_gated(parts_.activation, joined.rows(0, generated), tally, h.rows(0, generated), ctx);
    if (prompts > 0) {
      activate_gated(parts_.activation, joined.rows(generated, prompts), h.rows(generated, prompts),
                     ctx);
    }
  } else {
    // ReLU is part of the product, and a second time changes nothing; FATReLU would be a launch.
    const bool in_product = parts_.activation.kind == Activation::Kind::relu;
    linears.front()->forward(x, in_product ? parts_.activation : Activation(), h, ctx);
    activate(parts_.activation, tally, h.rows(0, generated), ctx);
    if (prompts > 0 && !in_product) {
      activate(parts_.activation, h.rows(generated, prompts), ctx);
    }
  }
  linears.back()->forward(h, y, ctx);
}

FusedMlp SparseMlp::fused(const Prediction& how) const {
  const Tensor& up = parts_.up.view;
  FusedMlp mlp;
  mlp.up = gated() ? up.rows(neurons(), neurons()) : up;
  mlp.down = parts_.down.view;
  mlp.up_bias = up_bias_;
  mlp.down_bias = parts_.down_bias.view;
  mlp.activation = parts_.activation;
  mlp.relu_up = parts_.relu_up;
  mlp.prediction = how.by;
  mlp.counters = how.counters;
  if (parts_.signs) {
    mlp.gate = gated() ? up.rows(0, neurons()) : Tensor();
    mlp.gate_bias = gated() ? gate_bias_ : Tensor();
    mlp.signs = parts_.signs->view();
  }
  return mlp;
}

void SparseMlp::predict(const Tensor& x, const SignPrediction& by, Tensor active,
                        ExecContext& ctx) const {
  const TraceScope traced(ctx, "MLP predictor");
  predict_active(x, parts_.signs->view(), by, active, ctx);
}

void SparseMlp::compute_active(const Tensor& x, const Tensor& active, Tensor h,
                               ExecContext& ctx) const {
  if (gated()) {
    gated_rows(x,
               {.gate = *gate_rows_,
                .up = *up_rows_,
                .gate_bias = gate_bias_,
                .up_bias = up_bias_,
                .activation = parts_.activation,
                .relu_up = parts_.relu_up},
               active, h, ctx);
  } else {
    plain_rows(x, {.up = *up_rows_, .bias = up_bias_, .activation = parts_.activation}, active, h,
               ctx);
  }
}

int64_t SparseMlp::workspace_bytes(int64_t tokens, DType dtype, Sums sums) const {
  const Device device = parts_.down.view.device();
  const int64_t hidden = parts_.down.view.size(1);
  const int64_t mask =
      parts_.signs ? Workspace::tensor_bytes(DType::u8, {tokens, neurons()}) : int64_t{0};
  const int64_t first = parts_.signs ? sign_predictor_workspace_bytes(device, hidden, tokens)
                                     : gate_.workspace_bytes(tokens, sums);
  const int64_t second = down_rows_workspace_bytes(device, neurons(), hidden, tokens);
  const int64_t generated =
      Workspace::tensor_bytes(dtype, {tokens, neurons()}) + mask + std::max(first, second);
  const int64_t dense = dense_->workspace_bytes(tokens, dtype, sums);
  const bool masks = device.is_cuda() && parts_.signs;
  // All rows may be of either kind; where both occur, each has its turn.
  return std::max(generated, dense + (masks ? mask + first : 0));
}

// Of a plain MLP the first product is by a whole weight.
std::vector<const Linear*> SparseMlp::partial_linears() const {
  return gated() && !parts_.signs ? std::vector<const Linear*>{&gate_}
                                  : std::vector<const Linear*>();
}

NeuronCounts SparseMlp::neuron_counts() const {
  const NeuronCounters counts = read_neuron_counters(counters_);
  const auto rows = static_cast<int64_t>(counts.rows);
  return {.rows = rows,
          .neurons = rows * neurons(),
          .skipped = static_cast<int64_t>(counts.skipped),
          .active = static_cast<int64_t>(counts.active)};
}

}  // namespace sparsellm
