#include "models/builders.h"

#include <memory>
#include <optional>
#include <utility>

#include "kernels/rope.h"
#include "models/sparse_mlp.h"
#include "sparse/dense/dense.h"

namespace sparsellm {
namespace {

using Bias = WeightLoader::Bias;

std::unique_ptr<Mlp> load_sparse_mlp(const ModelConfig& config, int64_t layer,
                                     const MlpModules& modules, WeightLoader& weights) {
  using Order = WeightLoader::Order;
  const ActivationSparsity& sparsity = config.activation_sparsity;
  const Bias bias = config.mlp_bias ? Bias::yes : Bias::no;
  SparseMlp::Parts parts{.activation = config.activation, .layer = layer};
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
      weights.dense_linear(modules.up, config.hidden_size, bias, Order::rows, parts.signs.get());
  WeightLoader::DenseLinear down =
      weights.dense_linear({modules.down}, config.intermediate_size, bias, Order::transposed);
  parts.up = std::move(up.weight);
  parts.up_bias = std::move(up.bias);
  parts.down = std::move(down.weight);
  parts.down_bias = std::move(down.bias);
  return std::make_unique<SparseMlp>(std::move(parts));
}

}  // namespace

std::unique_ptr<Mlp> load_mlp(const ModelConfig& config, int64_t layer, const MlpModules& modules,
                              WeightLoader& weights) {
  if (config.activation_sparsity.mode != ActivationSparsity::Mode::off) {
    return load_sparse_mlp(config, layer, modules, weights);
  }
  const Bias bias = config.mlp_bias ? Bias::yes : Bias::no;
  const Activation of_up = config.gated_mlp ? Activation() : config.activation;
  Linear up = weights.linear(modules.up, config.hidden_size, bias, of_up);
  Linear down = weights.linear({modules.down}, config.intermediate_size, bias);
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
  if (config.tied_head) {
    return {.weight = std::make_unique<DenseWeight>(token_embedding), .bias = {}, .activation = {}};
  }
  return {.weight = std::make_unique<DenseWeight>(
              weights.matrix("lm_head.weight", config.vocab_size, config.hidden_size)),
          .bias = {},
          .activation = {}};
}

}  // namespace sparsellm
