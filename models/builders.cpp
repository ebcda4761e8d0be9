#include "models/builders.h"

#include <memory>

#include "sparse/dense/dense.h"

namespace sparsellm {

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
