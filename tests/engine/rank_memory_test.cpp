// What is foretold of the memory that ranks need, and what they take.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "engine/conversion/convert.h"
#include "engine/engine.h"
#include "engine/format_selection.h"
#include "engine/memory_fit.h"
#include "engine/rank.h"
#include "engine/resolve_options.h"
#include "kernels/paged_kv.h"
#include "models/shard.h"
#include "models/storage/safetensors.h"
#include "models/weights/checkpoint_loader.h"
#include "models/weights/random_loader.h"
#include "tests/testing/paths.h"
#include "tests/testing/reference.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

EngineOptions options_for(int degree) {
  EngineOptions options;
  options.tensor_parallel.degree = degree;
  options.with_tokenizer = false;
  options.max_requests = 5;
  options.step_tokens = 100;
  options.context_size = 140;
  options.threads = 1;
  return options;
}

struct Taken {
  int64_t weights = 0;  // of the rank with the most
  int64_t step = 0;     // its
};

using MakeLoader = std::function<std::unique_ptr<WeightLoader>(const Shard& shard)>;

Taken taken_by_ranks(const ModelConfig& model, const EngineOptions& options,
                     const MakeLoader& make) {
  const ModelConfig config = config_to_run(model, options);
  const int degree = options.tensor_parallel.degree;
  Taken most;
  for (int rank = 0; rank < degree; ++rank) {
    Rank one(options, config, *make({.rank = rank, .degree = degree}));
    one.prepare();
    if (one.weight_bytes() > most.weights) {
      most = {.weights = one.weight_bytes(), .step = one.step_bytes()};
    }
  }
  return most;
}

MakeLoader stored(const Checkpoint& checkpoint, const EngineOptions& options) {
  return [&checkpoint, &options](const Shard& shard) {
    return std::make_unique<CheckpointLoader>(
        checkpoint, options.device, options.dtype, LoadProgress(),
        WeightEncoding{.format = options.weight_format, .threads = 1}, shard);
  };
}

TEST(RankMemory, OfDenseWeightsIsExact) {
  for (const fs::path& directory : testing::all_checkpoints()) {
    const ModelConfig config = read_model_config(directory);
    const Checkpoint checkpoint(directory);
    const DType dtype = weight_dtype(checkpoint, {}, {});
    for (int degree = 1; degree <= 8; ++degree) {
      if (!why_not_shared(config, degree).empty()) {
        continue;
      }
      SCOPED_TRACE(fmt::format("{}, {} ranks", directory.filename().string(), degree));
      const EngineOptions options = options_for(degree);
      const MemoryFit fit = fit_memory(config, dtype, options);
      const Taken taken = taken_by_ranks(config, options, stored(checkpoint, options));
      EXPECT_EQ(fit.weights, taken.weights);
      EXPECT_EQ(fit.step, taken.step);
    }
  }
}

// The pages are those that an engine then has, and each rank has its heads of a token.
TEST(RankMemory, OfTheKvCache) {
  const fs::path directory = testing::data("tiny/llama_six_heads");
  const ModelConfig config = read_model_config(directory);
  for (const int degree : {1, 3, 6}) {
    SCOPED_TRACE(degree);
    EngineOptions options = options_for(degree);
    for (const int64_t tokens : {0, 700}) {
      options.kv_tokens = tokens;
      const MemoryFit fit = fit_memory(config, DType::f16, options);
      const Engine engine = Engine::load(directory, options);
      EXPECT_EQ(fit.run_kv_tokens, engine.total_pages() * kPageSize);
      EXPECT_EQ(fit.run_kv_tokens * fit.kv_per_token, engine.stats().kv_bytes);
      EXPECT_EQ(fit.kv_per_token, 2 * 2 * (degree == 1 ? 3 : 1) * 64 * 4);
    }
    options.kv_tokens = 0;
    options.kv_bytes = 100'000;
    const Engine engine = Engine::load(directory, options);
    EXPECT_EQ(fit_memory(config, DType::f16, options).kv_tokens, engine.total_pages() * kPageSize);
  }
  // Ranks on the CPU share the memory of one machine.
  const DeviceMemory whole = memory_of_rank(options_for(1));
  EXPECT_EQ(memory_of_rank(options_for(4)).total, whole.total / 4);
}

TEST(RankMemory, OfSparseWeights) {
  const testing::TempDir folder;
  const fs::path model = testing::data("models/fable-llama-relu-8m");
  for (const double sparsity : {0.65, 0.79}) {
    for (const std::string format : {"tca_bme", "tiled_csl"}) {
      const fs::path converted = folder.path() / fmt::format("{}{}", format, sparsity);
      convert_model(
          {.input = model,
           .output = converted,
           .plan = SparsityPlan::uniform(
               {.method = parse_prune_method("magnitude"), .sparsity = sparsity}, format)});
      const Checkpoint checkpoint(converted);
      const WeightStore store(checkpoint);
      const ModelConfig config = read_model_config(converted);
      for (const int degree : {2, 4}) {
        SCOPED_TRACE(fmt::format("{} at {}, {} ranks", format, sparsity, degree));
        const EngineOptions options = options_for(degree);
        const MemoryFit fit = fit_memory(config, DType::f16, options, {.store = &store});
        const Taken taken = taken_by_ranks(config, options, stored(checkpoint, options));
        const auto bytes = static_cast<double>(taken.weights);
        EXPECT_NEAR(static_cast<double>(fit.weights), bytes, 0.005 * bytes);
      }
    }
  }
}

TEST(RankMemory, OfRandomWeights) {
  const fs::path file = testing::data("models/fable-llama-relu-8m") / "config.json";
  const ModelConfig config = read_model_config_file(file);
  for (const char* format : {"dense", "tca_bme", "tiled_csl"}) {
    const RandomWeights weights{.sparsity = 0.65, .format = format};
    SCOPED_TRACE(format);
    const EngineOptions options = options_for(4);
    const MemoryFit fit = fit_memory(config, DType::f16, options, {.random = weights});
    const Taken taken = taken_by_ranks(config, options, [&](const Shard& shard) {
      return std::make_unique<RandomLoader>(options.device, weights, shard);
    });
    const auto bytes = static_cast<double>(taken.weights);
    EXPECT_NEAR(static_cast<double>(fit.weights), bytes,
                std::string(format) == "dense" ? 0.0 : 0.005 * bytes);
  }
}

// Weights that are encoded while loading are counted for every rank, and progress goes on.
TEST(RankMemory, ProgressIsThatOfAllRanks) {
  const fs::path directory = testing::data("tiny/llama_six_heads");
  const Checkpoint checkpoint(directory);
  const WeightStore store(checkpoint);
  EngineOptions options = options_for(3);
  options.weight_format = "tca_bme";
  std::vector<int64_t> progress;
  options.progress = [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, 3 * checkpoint.bytes());
    progress.push_back(done);
  };
  const ModelConfig config = read_model_config(directory);
  fit_memory(config, DType::f16, options, {.store = &store});
  EXPECT_TRUE(std::ranges::is_sorted(progress));
  ASSERT_FALSE(progress.empty());
  EXPECT_LE(progress.back(), 3 * checkpoint.bytes());
  EXPECT_GT(progress.back(), 2 * checkpoint.bytes());
}

// "auto" chooses by what rank 0 has.
TEST(RankMemory, FormatsAreChosenByTheSharesOfTheFirstRank) {
  const fs::path directory = testing::data("tiny/llama_six_heads");
  const Checkpoint checkpoint(directory);
  const ModelConfig config = read_model_config(directory);
  for (const int degree : {1, 3}) {
    EngineOptions options = options_for(degree);
    options.weight_format = "auto";
    const std::vector<FormatChoice> choices = select_formats(config, checkpoint, options);
    ASSERT_FALSE(choices.empty());
    EXPECT_EQ(choices.front().kind.layer.rows, (6 + 2 * 3) * 64 / degree);
    const Engine engine = Engine::load(directory, options);
    ASSERT_EQ(engine.format_choices().size(), choices.size());
    const WeightStore store(checkpoint);
    const MemoryFit fit = fit_memory(config, DType::f16, options, {.store = &store});
    ASSERT_EQ(fit.formats.size(), choices.size());
    for (size_t i = 0; i < choices.size(); ++i) {
      EXPECT_EQ(fit.formats[i].in.format, choices[i].in.format);
      EXPECT_EQ(engine.format_choices()[i].in.format, choices[i].in.format);
    }
  }
}

}  // namespace
}  // namespace sparsellm
