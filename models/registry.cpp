#include "models/registry.h"

#include <array>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"
#include "models/builders.h"

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
      // The CPU device computes in f32; CUDA in f16 until a model's own dtype is passed down.
      const DType dtype = weights.device().is_cuda() ? DType::f16 : DType::f32;
      auto decoder = std::make_unique<Decoder>(builder.build(config, weights), dtype);
      // RoPE tables of old checkpoints, and a head that is stored although it is tied.
      const std::string_view rope_table = "rotary_emb.inv_freq";
      weights.require_all_used({rope_table, config.tied_head ? "lm_head.weight" : rope_table});
      return decoder;
    }
  }
  fail("the architecture {} is not supported", config.architecture);
}

}  // namespace sparsellm
