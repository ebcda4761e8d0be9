// The models of configs/, as small as they can be with all their heads, on every number of ranks.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kernels/base/mapped_file.h"
#include "models/shard.h"
#include "models/weights/random_weights.h"
#include "tests/engine/check_reference.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::throws_error;

constexpr int64_t kHeadDim = 8;

// One layer with few neurons, and a sixty-fourth of the vocabulary.
json small(json config) {
  const auto shrink = [&](const char* key, int64_t by) {
    if (config.contains(key)) {
      config[key] = config.at(key).get<int64_t>() / by;
    }
  };
  const int64_t hidden = kHeadDim * config.at("num_attention_heads").get<int64_t>();
  for (const char* key : {"hidden_size", "word_embed_proj_dim"}) {
    if (config.contains(key)) {
      config[key] = hidden;
    }
  }
  if (config.contains("head_dim")) {
    config["head_dim"] = kHeadDim;
  }
  shrink("intermediate_size", 128);
  shrink("ffn_dim", 128);
  shrink("vocab_size", 64);
  config["num_hidden_layers"] = 1;
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    config.erase(key);
  }
  return config;
}

TEST(ConfigRanks, RunOrAreRefusedByName) {
  const testing::TempDir folder;
  int models = 0;
  int runs = 0;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(testing::source_dir() / "configs")) {
    if (entry.path().extension() != ".json") {
      continue;
    }
    const json published = json::parse(read_text_file(entry.path(), 1 << 20));
    const std::string architecture = published.at("architectures").at(0);
    if (architecture == "MixtralForCausalLM") {
      continue;  // which is not run at all
    }
    ++models;
    const fs::path file = folder.write(entry.path().filename(), small(published).dump());
    const auto heads = published.at("num_attention_heads").get<int>();
    const int kv_heads = published.value("num_key_value_heads", heads);
    const RandomWeights weights{.sparsity = 0.5, .seed = 2, .format = "tca_bme"};
    testing::LogitRows expected;
    for (int degree = 1; degree <= 8; ++degree) {
      SCOPED_TRACE(fmt::format("{}, {} ranks", entry.path().filename().string(), degree));
      EngineOptions options;
      options.tensor_parallel.degree = degree;
      options.threads = 1;
      options.max_requests = 1;
      options.step_tokens = 16;
      options.context_size = 16;
      if (heads % degree != 0) {
        EXPECT_TRUE(
            throws_error([&] { Engine::load_random(file, weights, options); },
                         fmt::format("{} GPUs cannot share {} attention heads", degree, heads)));
        continue;
      }
      if (kv_heads % degree != 0 && degree % kv_heads != 0) {
        EXPECT_TRUE(throws_error(
            [&] { Engine::load_random(file, weights, options); },
            fmt::format("{} GPUs cannot share {} heads of keys and values", degree, kv_heads)));
        continue;
      }
      Engine engine = Engine::load_random(file, weights, options);
      const testing::LogitRows logits = testing::score(engine, {1, 2, 30, 4});
      if (degree == 1) {
        expected = logits;
      } else {
        testing::expect_near(logits, expected, testing::kRowTolerance);
      }
      ++runs;
    }
  }
  EXPECT_GE(models, 23);
  EXPECT_GE(runs, 4 * models);
}

}  // namespace
}  // namespace sparsellm
