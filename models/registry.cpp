#include "models/registry.h"

#include <array>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"
#include "models/builders.h"
#include "models/shape_loader.h"

namespace sparsellm {
namespace {

struct Builder {
  std::string_view architecture;
  Decoder::Parts (*build)(const ModelConfig& config, WeightLoader& weights);
};

constexpr std::array kBuilders{
    Builder{"LlamaForCausalLM", build_llama},
    Builder{"OPTForCausalLM", build_opt},
    Builder{"SparseLlamaForCausalLM", build_llama},
};

}  // namespace

std::unique_ptr<Decoder> build_decoder(const ModelConfig& config, WeightLoader& weights) {
  for (const Builder& builder : kBuilders) {
    if (builder.architecture == config.architecture) {
      if (weights.device().is_cuda()) {
        ShapeLoader shapes(weights.device(), weights.activation_dtype());
        builder.build(config, shapes);
        weights.reserve(shapes.footprint());
      }
      Decoder::Parts parts = builder.build(config, weights);
      parts.memory = weights.take_memory();
      auto decoder = std::make_unique<Decoder>(std::move(parts), weights.activation_dtype());
      // RoPE tables of old checkpoints, and a head that is stored although it is tied.
      const std::string_view rope_table = "rotary_emb.inv_freq";
      weights.require_all_used({rope_table, config.tied_head ? "lm_head.weight" : rope_table});
      weights.finish();
      return decoder;
    }
  }
  fail("the architecture {} is not supported", config.architecture);
}

}  // namespace sparsellm
