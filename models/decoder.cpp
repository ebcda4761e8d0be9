#include "models/decoder.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <typeindex>
#include <utility>

#include "kernels/add.h"
#include "kernels/base/comm.h"
#include "kernels/base/error.h"
#include "kernels/base/step_trace.h"
#include "kernels/base/token_buckets.h"
#include "kernels/embedding.h"
#include "kernels/tune/make_meter.h"
#include "models/sparse_mlp.h"
#include "models/weights/sum_over_ranks.h"

namespace sparsellm {
namespace {

// Linear layers for which the same kernels are best.
using LinearKind =
    std::tuple<std::string_view, std::type_index, int64_t, int64_t, bool, Activation::Kind>;

LinearKind kind_of(const Linear& linear) {
  const WeightMatrix& weight = *linear.weight;
  return {weight.format(), std::type_index(typeid(weight)), weight.out(),
          weight.in(),     linear.bias.view.empty(),        linear.activation.kind};
}

int64_t tune_alike(const std::vector<const Linear*>& linears, DType y,
                   std::span<const int64_t> tokens, TuneCache& cache, ExecContext& ctx) {
  std::vector<const WeightMatrix*> weights;
  weights.reserve(linears.size());
  for (const Linear* linear : linears) {
    weights.push_back(linear->weight.get());
  }
  const Linear& first = *linears.front();
  return first.weight->tune({.alike = weights,
                             .epilogue = {.bias = first.bias.view, .activation = first.activation},
                             .y = y,
                             .tokens = tokens},
                            cache, ctx);
}

}  // namespace

Decoder::Decoder(Parts parts, DType activation_dtype)
    : parts_(std::move(parts)),
      activation_dtype_(activation_dtype),
      vocabulary_borders_(share_borders(vocab_size(), parts_.shard.degree)) {
  require(!parts_.layers.empty(), "a decoder needs at least one layer");
}

void Decoder::forward(const StepInputs& step, const KvCache& kv, Tensor hidden,
                      ExecContext& ctx) const {
  auto scratch = ctx.workspace.scope();
  parts_.embedding.forward(step, hidden, ctx);
  Tensor delta = scratch.tensor(activation_dtype_, {hidden.size(0), hidden.size(1)});
  LayerInputs inputs = layer_inputs(step.batch, parts_.rope_frequencies.view, scratch, ctx);
  inputs.parts = row_parts(step.batch, delta, ctx);
  const Communicator::Deferral deferral(inputs.parts.size() > 1 ? ctx.comm : nullptr);
  for (size_t i = 0; i < parts_.layers.size(); ++i) {
    parts_.layers[i].forward(hidden, inputs, kv.layer(static_cast<int64_t>(i)), delta, ctx);
    inputs.first = false;
  }
  for (const RowPart& part : inputs.parts) {
    finish_sum_over_ranks(part.of(delta), ctx);
  }
  add(delta, hidden, ctx, parts_.residual_scale);
}

void Decoder::logits(const Tensor& hidden, const Tensor& rows, Tensor logits,
                     ExecContext& ctx) const {
  auto scratch = ctx.workspace.scope();
  Tensor selected = hidden;
  if (!rows.empty()) {
    selected = scratch.tensor(DType::f32, {rows.size(0), hidden.size(1)});
    const EmbeddingTables rows_of_hidden{.tokens = hidden, .positions = {}, .position_offset = 0};
    embedding(rows, {}, rows_of_hidden, selected, ctx);
  }
  Tensor normed = scratch.tensor(activation_dtype_, {selected.size(0), hidden.size(1)});
  parts_.final_norm.forward(selected, normed, ctx);
  require(logits.rank() == 2 && logits.size(1) == vocab_size(), "logits {} of {} tokens",
          logits.shape_string(), vocab_size());
  const Range own = vocabulary();
  const Tensor part = logits.columns(own.begin, own.count);
  parts_.head.forward(normed, part, ctx);
  if (ctx.comm != nullptr) {
    const TraceScope traced(ctx, "communication");
    ctx.comm->all_gather(part, vocabulary_borders_, logits, ctx);
  }
}

std::vector<const Linear*> Decoder::linears() const {
  std::vector<const Linear*> all;
  for (const DecoderLayer& layer : parts_.layers) {
    const std::vector<const Linear*> of_mlp = layer.mlp->linears();
    all.insert(all.end(), of_mlp.begin(), of_mlp.end());
    all.insert(all.end(), {&layer.attention.qkv, &layer.attention.out});
  }
  return all;
}

std::set<std::string> Decoder::notices() const {
  std::set<std::string> notices;
  for (const Linear* linear : linears()) {
    notices.insert(linear->weight->notice());
  }
  notices.erase("");
  return notices;
}

std::vector<FormatSum> Decoder::linear_weights() const {
  std::map<std::string_view, FormatSum> sums;
  for (const Linear* linear : linears()) {
    const WeightMatrix& weight = *linear->weight;
    const int64_t elements = weight.out() * weight.in();
    const auto [at, is_new] = sums.try_emplace(weight.format());
    FormatSum& sum = at->second;
    sum.format = weight.format();
    const std::optional<int64_t> before = is_new ? 0 : sum.nonzeros;
    const std::optional<int64_t> more = weight.nonzeros();
    sum.nonzeros = before && more ? std::optional(*before + *more) : std::nullopt;
    sum.elements += elements;
    sum.bytes += weight.bytes();
    sum.dense_bytes += elements * size_of(weight.dtype());
  }
  std::vector<FormatSum> all;
  all.reserve(sums.size());
  for (const auto& [format, sum] : sums) {
    all.push_back(sum);
  }
  return all;
}

std::vector<BlockWeight> Decoder::block_weights() const {
  std::vector<BlockWeight> all;
  for (int64_t block = 0; block < layers(); ++block) {
    for (const auto& [name, linear] : parts_.layers[static_cast<size_t>(block)].linears()) {
      const WeightMatrix& weight = *linear->weight;
      all.push_back({.block = block,
                     .name = std::string(name),
                     .out = weight.out(),
                     .in = weight.in(),
                     .format = std::string(weight.format()),
                     .bytes = weight.bytes(),
                     .nonzeros = weight.nonzeros()});
    }
  }
  return all;
}

NeuronCounts Decoder::neuron_counts(int64_t layer) const {
  return parts_.layers.at(static_cast<size_t>(layer)).mlp->neuron_counts();
}

int64_t Decoder::tune(std::span<const int64_t> tokens, std::span<const int64_t> logit_tokens,
                      TuneCache& cache, ExecContext& ctx) {
  std::map<LinearKind, std::vector<const Linear*>> kinds;
  for (const Linear* linear : linears()) {
    kinds[kind_of(*linear)].push_back(linear);
  }
  for (const DecoderLayer& layer : parts_.layers) {
    for (const Linear* linear : layer.mlp->partial_linears()) {
      kinds[kind_of(*linear)].push_back(linear);
    }
  }
  int64_t measured = 0;
  for (const auto& [kind, alike] : kinds) {
    measured += tune_alike(alike, activation_dtype_, tokens, cache, ctx);
  }
  measured += tune_alike({&parts_.head}, DType::f32, logit_tokens, cache, ctx);
  return measured + tune_mlps(tokens, cache, ctx);
}

std::vector<SparseMlp*> Decoder::sparse_mlps() const {
  std::vector<SparseMlp*> sparse;
  for (const DecoderLayer& layer : parts_.layers) {
    if (auto* const mlp = dynamic_cast<SparseMlp*>(layer.mlp.get()); mlp != nullptr) {
      sparse.push_back(mlp);
    }
  }
  return sparse;
}

std::set<int64_t> Decoder::most_rows_by_neurons() const {
  std::set<int64_t> most;
  for (const SparseMlp* mlp : sparse_mlps()) {
    most.insert(mlp->most_rows());
  }
  return most;
}

int64_t Decoder::tune_mlps(std::span<const int64_t> tokens, TuneCache& cache, ExecContext& ctx) {
  const std::vector<SparseMlp*> sparse = sparse_mlps();
  if (sparse.empty() || !ctx.device.is_cuda() || ctx.sums == Sums::batch_invariant) {
    return 0;
  }
  const std::unique_ptr<TuneMeter> meter = make_cuda_meter(ctx);
  return SparseMlp::tune(sparse, {.dtype = activation_dtype_, .tokens = tokens}, *meter, cache,
                         ctx);
}

KvShape Decoder::kv_shape() const {
  const SelfAttention& attention = parts_.layers.front().attention;
  return {.layers = layers(),
          .kv_heads = attention.kv_heads,
          .head_dim = attention.head_dim,
          .dtype = activation_dtype_};
}

int64_t Decoder::workspace_bytes(int64_t tokens, int64_t logit_rows, Device device,
                                 Sums sums) const {
  const DType dtype = activation_dtype_;
  int64_t most = Workspace::tensor_bytes(DType::f32, {logit_rows, vocab_size()}) +
                 Workspace::tensor_bytes(DType::f32, {logit_rows, hidden_size()}) +
                 Workspace::tensor_bytes(dtype, {logit_rows, hidden_size()}) +
                 parts_.head.workspace_bytes(logit_rows, sums);
  // Products of few tokens may take more than those of many.
  for (int64_t bucket : token_buckets_up_to(tokens)) {
    const int64_t rows = std::min(bucket, tokens);
    int64_t layer = 0;
    for (const DecoderLayer& l : parts_.layers) {
      layer = std::max(layer, l.workspace_bytes(rows, dtype, device, sums));
    }
    most = std::max(most, layer + layer_inputs_bytes(rows, parts_.rope_frequencies.view) +
                              Workspace::tensor_bytes(dtype, {rows, hidden_size()}));
  }
  return most;
}

}  // namespace sparsellm
