#include "models/builders.h"

#include <memory>

#include "kernels/rope.h"
#include "sparse/dense/dense.h"

namespace sparsellm {

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
