#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/cli/args.h"
#include "tools/cli/rank_server.h"

namespace sparsellm {

// Runs `body`, all that a command of a tool does. Under mpirun, torchrun or srun
// (rank_environment()) with several processes, rank 0 alone does, when all have met: its engines
// are shared by all (args.ranks.session); the other processes compute their parts of the models
// that `models` lists, and read, print and write nothing. Throws Error for ranks that do not fit
// together, what `body` throws, and serve_rank()'s.
void with_ranks(const std::string& tool, ModelArgs& args,
                const std::function<std::vector<RankModel>()>& models,
                const std::function<void()>& body);

// The model directory of these arguments. In its fingerprint are the bytes of config.json, the
// sizes of the files of weights, and what they say of their tensors, with the checksums that
// converted models have.
RankModel checkpoint_rank_model(const ModelArgs& args);

// The options of this process alone, for run_rank().
EngineOptions own_rank_options(const ModelArgs& args);

// "OPTForCausalLM, 12 layers, config 1a2b3c4d": the beginning of a fingerprint. `file` is the
// config's.
std::string config_fingerprint(const ModelConfig& config, const InputFile& file);
// Eight hexadecimal digits.
std::string text_checksum(std::string_view text);

}  // namespace sparsellm
