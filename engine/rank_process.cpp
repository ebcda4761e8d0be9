#include "engine/rank_process.h"

#include <utility>

#include "engine/rank.h"
#include "engine/rank_options.h"
#include "engine/rank_worker.h"
#include "engine/resolve_options.h"
#include "kernels/base/error.h"
#include "models/storage/model_file.h"
#include "models/weights/random_loader.h"
#include "sparse/registry.h"

namespace sparsellm {
namespace {

// The options of rank 0, for this rank.
RankOptions options_here(std::string_view rank_options, const EngineOptions& own,
                         Communicator& comm) {
  RankOptions read = read_rank_options(rank_options, own);
  const int degree = read.options.tensor_parallel.degree;
  require(degree == comm.size(), "rank 0 says that there are {} ranks, of {}", degree, comm.size());
  read.options = options_of_rank(read.options, comm);
  check_device(read.options.device);
  return read;
}

Shard shard_of(const Communicator& comm) { return {.rank = comm.rank(), .degree = comm.size()}; }

}  // namespace

std::unique_ptr<WeightLoader> checkpoint_loader(const Checkpoint& checkpoint,
                                                WeightEncoding encoding,
                                                const EngineOptions& of_rank, const Shard& shard) {
  encoding.threads = of_rank.threads;
  return std::make_unique<CheckpointLoader>(checkpoint, of_rank.device, of_rank.dtype,
                                            of_rank.progress, std::move(encoding), shard);
}

void run_rank(const OpenDirectory& directory, const EngineOptions& own,
              std::string_view rank_options, Communicator& comm) noexcept {
  const auto load = [&](Communicator& all) {
    const auto [options, formats] = options_here(rank_options, own, all);
    ModelConfig config = config_to_run(read_model_config(directory), options);
    const Checkpoint checkpoint(directory);
    if (options.verify) {
      ModelFile(checkpoint).verify(options.progress);
    }
    WeightEncoding encoding{
        .format = options.weight_format, .layers = formats, .records = options.records};
    if (encoding.format == kAutoFormat) {
      encoding.format.clear();
    }
    const auto weights = checkpoint_loader(checkpoint, std::move(encoding), options, shard_of(all));
    return std::make_unique<Rank>(options, std::move(config), *weights, &all);
  };
  run_rank_worker(load, comm);
}

void run_random_rank(const std::filesystem::path& config_file, const MakeRandomWeights& weights,
                     const EngineOptions& own, std::string_view rank_options,
                     Communicator& comm) noexcept {
  const auto load = [&](Communicator& all) {
    const auto [options, formats] = options_here(rank_options, own, all);
    ModelConfig config = config_to_run(read_model_config_file(config_file), options);
    RandomLoader loader(options.device, in_formats(weights(options), formats), shard_of(all));
    return std::make_unique<Rank>(options, std::move(config), loader, &all);
  };
  run_rank_worker(load, comm);
}

}  // namespace sparsellm
