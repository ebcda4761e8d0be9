#include "models/builders.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "kernels/rope.h"
#include "models/shard.h"
#include "models/sparse_mlp.h"
#include "models/weights/empty_weight.h"
#include "sparse/dense/dense.h"

namespace sparsellm {
namespace {

using Bias = WeightRequest::Bias;
using Split = WeightRequest::Split;

// Of the up projection. Where gate and up have a ReLU each, both are part of their joined product.
Activation product_activation(const ModelConfig& config) {
  return config.gated_mlp && !config.relu_up ? Activation() : config.activation;
}

// Of the neurons that a rank has, up has the rows and down the columns.
WeightRequest up_request(const ModelConfig& config, const MlpModules& modules) {
  WeightRequest request{.parts = {},
                        .in = config.hidden_size,
                        .split = Split::out,
                        .bias = config.mlp_bias ? Bias::yes : Bias::no,
                        .activation = product_activation(config)};
  for (const std::string& module : modules.up) {
    request.parts.push_back({module, config.intermediate_size});
  }
  return request;
}

WeightRequest down_request(const ModelConfig& config, const MlpModules& modules) {
  return {.parts = {{modules.down, config.hidden_size}},
          .in = config.intermediate_size,
          .split = Split::in,
          .bias = config.mlp_bias ? Bias::yes : Bias::no};
}

std::unique_ptr<Mlp> load_sparse_mlp(const ModelConfig& config, int64_t layer,
                                     const MlpModules& modules, WeightLoader& weights) {
  using Order = WeightLoader::Order;
  const ActivationSparsity& sparsity = config.activation_sparsity;
  SparseMlp::Parts parts{.activation = config.activation,
                         .relu_up = config.relu_up,
                         .layer = layer,
                         .first_neuron = neurons(config, weights.shard()).begin,
                         .sums_over_ranks = weights.shard().degree > 1};
  if (!sparsity.thresholds.empty()) {
    parts.activation = {.kind = Activation::Kind::fatrelu,
                        .threshold = sparsity.thresholds.at(static_cast<size_t>(layer))};
  }
  const std::optional<float> alpha = sparsity.mode == ActivationSparsity::Mode::predict
                                         ? sparsity.alphas.at(static_cast<size_t>(layer))
                                         : std::nullopt;
  if (alpha) {
    parts.signs = std::make_unique<OwnedSignWords>();
    parts.prediction = {.votes = sparsity.votes, .alpha = *alpha};
    if (sparsity.skipped) {
      parts.expected_zeros = *sparsity.skipped;
    }
  }
  WeightLoader::DenseLinear up =
      weights.dense_linear(up_request(config, modules), Order::rows, parts.signs.get());
  WeightLoader::DenseLinear down =
      weights.dense_linear(down_request(config, modules), Order::transposed);
  parts.up = std::move(up.weight);
  parts.up_bias = std::move(up.bias);
  parts.down = std::move(down.weight);
  parts.down_bias = std::move(down.bias);
  return std::make_unique<SparseMlp>(std::move(parts));
}

}  // namespace

SelfAttention load_attention(const ModelConfig& config, const AttentionModules& modules,
                             WeightLoader& weights) {
  const int64_t q_size = config.num_heads * config.head_dim;
  const int64_t kv_size = config.num_kv_heads * config.head_dim;
  SelfAttention attention{
      .qkv = weights.linear(
          {.parts = {{modules.q, q_size}, {modules.k, kv_size}, {modules.v, kv_size}},
           .in = config.hidden_size,
           .split = Split::out,
           .unit = config.head_dim,
           .bias = config.qkv_bias ? Bias::yes : Bias::no}),
      .out = weights.linear({.parts = {{modules.out, config.hidden_size}},
                             .in = q_size,
                             .split = Split::in,
                             .unit = config.head_dim,
                             .bias = config.attention_out_bias ? Bias::yes : Bias::no}),
      .heads = query_heads(config, weights.shard()).count,
      .kv_heads = kv_heads(config, weights.shard()).count,
      .head_dim = config.head_dim,
      .window = config.window};
  if (config.qk_norm) {
    attention.q_norm = weights.vector(modules.q_norm + ".weight", config.head_dim);
    attention.k_norm = weights.vector(modules.k_norm + ".weight", config.head_dim);
    attention.norm_epsilon = config.norm_epsilon;
  }
  return attention;
}

std::unique_ptr<Mlp> load_mlp(const ModelConfig& config, int64_t layer, const MlpModules& modules,
                              WeightLoader& weights) {
  const bool is_empty = neurons(config, weights.shard()).count == 0;
  if (config.activation_sparsity.mode != ActivationSparsity::Mode::off && !is_empty) {
    return load_sparse_mlp(config, layer, modules, weights);
  }
  Linear up = weights.linear(up_request(config, modules));
  Linear down = weights.linear(down_request(config, modules));
  if (is_empty) {
    return std::make_unique<EmptyMlp>(std::move(down));
  }
  if (config.gated_mlp) {
    return std::make_unique<GatedMlp>(std::move(up), config.activation, std::move(down));
  }
  return std::make_unique<PlainMlp>(std::move(up), std::move(down));
}

OwnedTensor load_rope_frequencies(const ModelConfig& config, WeightLoader& weights) {
  switch (config.positions) {
    case ModelConfig::Positions::learned:
      return {};
    case ModelConfig::Positions::rope:
      return weights.constants(
          "the RoPE frequencies",
          rope_frequencies(config.head_dim, config.rope_theta, config.rope_scaling));
  }
  return {};
}

Linear load_head(const ModelConfig& config, const Tensor& token_embedding, WeightLoader& weights) {
  if (!config.tied_head) {
    return weights.head(
        {.parts = {{"lm_head", config.vocab_size}}, .in = config.hidden_size, .split = Split::out});
  }
  const Range rows = vocabulary(config, weights.shard());
  if (rows.count == 0) {
    return {.weight = std::make_unique<EmptyWeight>(0, config.hidden_size, token_embedding.dtype()),
            .bias = {},
            .activation = {}};
  }
  // Where shapes alone are known, there is no memory behind them.
  return {.weight = std::make_unique<DenseWeight>(
              token_embedding.rows(token_embedding.empty() ? 0 : rows.begin, rows.count)),
          .bias = {},
          .activation = {}};
}

}  // namespace sparsellm
