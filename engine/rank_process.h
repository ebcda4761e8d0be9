#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>

#include "engine/engine_options.h"
#include "kernels/base/comm.h"
#include "kernels/base/open_directory.h"
#include "models/storage/safetensors.h"
#include "models/weights/checkpoint_loader.h"
#include "models/weights/random_weights.h"

namespace sparsellm {

// What a process does for an engine whose rank 0 is another process, and which has called
// TensorParallel::meet there: it loads its share of the same model, and computes what rank 0 says
// until that has no more to compute.
//   own           device, cpu_isa and tune_cache of this process, and in `verify`, whether it is
//                 the one of its host that compares checksums where rank 0 has them compared
//   rank_options  what rank 0's `meet` was given
// Nothing is thrown: what goes wrong ends the communicator.
void run_rank(const OpenDirectory& directory, const EngineOptions& own,
              std::string_view rank_options, Communicator& comm) noexcept;

// The same of Engine::load_random(). `weights` makes them for the options of rank 0.
using MakeRandomWeights = std::function<RandomWeights(const EngineOptions& options)>;
void run_random_rank(const std::filesystem::path& config_file, const MakeRandomWeights& weights,
                     const EngineOptions& own, std::string_view rank_options,
                     Communicator& comm) noexcept;

// Of what a rank has, on its device; the checkpoint outlives it.
std::unique_ptr<WeightLoader> checkpoint_loader(const Checkpoint& checkpoint,
                                                WeightEncoding encoding,
                                                const EngineOptions& of_rank, const Shard& shard);

}  // namespace sparsellm
