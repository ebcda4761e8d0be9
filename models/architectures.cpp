#include "models/architectures.h"

#include <array>

#include "models/builders.h"
#include "models/config_readers.h"

namespace sparsellm {
namespace {

constexpr std::array kArchitectures{
    Architecture{.name = "LlamaForCausalLM",
                 .model_type = "llama",
                 .code = ModelCode::transformers,
                 .read = read_llama_config,
                 .builder = llama_builder},
    Architecture{.name = "OPTForCausalLM",
                 .model_type = "opt",
                 .code = ModelCode::transformers,
                 .read = read_opt_config,
                 .builder = opt_builder},
    Architecture{.name = "SparseLlamaForCausalLM",  // ProSparse
                 .model_type = "sparsellama",
                 .code = ModelCode::own,
                 .read = read_llama_config,
                 .builder = llama_builder},
};

}  // namespace

std::span<const Architecture> architectures() { return kArchitectures; }

}  // namespace sparsellm
