#include "models/architectures.h"

#include <algorithm>
#include <array>

#include "kernels/base/error.h"
#include "models/builders.h"
#include "models/config.h"
#include "models/config_readers.h"

namespace sparsellm {
namespace {

constexpr std::array<std::string_view, 2> kMiniCpmKeys{"scale_emb", "scale_depth"};

// Two layers for each MLP, of Bamboo's and TurboSparse's files.
constexpr std::array<std::string_view, 2> kPredictor{".mlp.predictor.fc1.weight",
                                                     ".mlp.predictor.fc2.weight"};

constexpr std::array kArchitectures{
    Architecture{.name = "LlamaForCausalLM",
                 .model_type = "llama",
                 .code = ModelCode::transformers,
                 .read = read_llama_config,
                 .builder = llama_builder},
    Architecture{.name = "MistralForCausalLM",
                 .model_type = "mistral",
                 .code = ModelCode::transformers,
                 .read = read_mistral_config,
                 .builder = llama_builder},
    Architecture{.name = "OPTForCausalLM",
                 .model_type = "opt",
                 .code = ModelCode::transformers,
                 .read = read_opt_config,
                 .builder = opt_builder},
    Architecture{.name = "Qwen2ForCausalLM",
                 .model_type = "qwen2",
                 .code = ModelCode::transformers,
                 .read = read_qwen2_config,
                 .builder = llama_builder},
    Architecture{.name = "Qwen3ForCausalLM",
                 .model_type = "qwen3",
                 .code = ModelCode::transformers,
                 .read = read_qwen3_config,
                 .builder = llama_builder},
    Architecture{.name = "BambooForCausalLM",
                 .model_type = "bamboo",
                 .code = ModelCode::own,
                 .read = read_bamboo_config,
                 .left_out = kPredictor,
                 .builder = llama_builder},
    Architecture{.name = "MiniCPMForCausalLM",
                 .model_type = "minicpm",
                 .code = ModelCode::own,
                 .read = read_minicpm_config,
                 .own_keys = kMiniCpmKeys,
                 .builder = llama_builder},
    Architecture{.name = "SparseLlamaForCausalLM",  // ProSparse
                 .model_type = "sparsellama",
                 .code = ModelCode::own,
                 .read = read_llama_config,
                 .builder = llama_builder},
    Architecture{.name = "SparseLlamaForCausalLM",
                 .model_type = "llama_sparse_relu",
                 .code = ModelCode::own,
                 .read = read_sparse_relu_llama_config,
                 .builder = llama_builder},
};

}  // namespace

std::span<const Architecture> architectures() { return kArchitectures; }

const Architecture& architecture_of(const ModelConfig& config) {
  const auto* found = std::ranges::find(kArchitectures, config.architecture, &Architecture::name);
  require(found != kArchitectures.end(), "the architecture {} is not supported",
          config.architecture);
  return *found;
}

}  // namespace sparsellm
