#include "engine/memory_fit.h"

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "kernels/paged_kv.h"
#include "models/safetensors.h"
#include "sparse/tca_bme/record_layout.h"
#include "tests/testing/paths.h"
#include "tests/testing/reference.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"
#include "tools/convert.h"

namespace sparsellm {
namespace {

// What is promised without loading anything is what an engine then has.
TEST(MemoryFit, IsWhatAnEngineTakes) {
  for (const std::filesystem::path& directory : testing::all_checkpoints()) {
    SCOPED_TRACE(directory);
    EngineOptions options;
    options.with_tokenizer = false;
    options.max_requests = 5;
    options.step_tokens = 100;
    options.context_size = 140;
    options.kv_tokens = 700;
    const ModelConfig config = read_model_config(directory);
    const Checkpoint checkpoint(directory);
    const MemoryFit fit =
        fit_memory(config, weight_dtype(checkpoint, options.device, options.dtype), options);
    const Engine engine = Engine::load(directory, options);
    EXPECT_EQ(fit.weights, engine.stats().weight_bytes);
    EXPECT_EQ(fit.step, engine.stats().workspace_bytes);
    EXPECT_EQ(fit.kv_tokens, engine.total_pages() * kPageSize);
    EXPECT_EQ(fit.kv_tokens * fit.kv_per_token, engine.stats().kv_bytes);
    EXPECT_EQ(fit.context_size, 140);
    EXPECT_EQ(fit.requests_of(140), 4);  // of 9 pages each, of 44
    options.kv_tokens = 0;
    EXPECT_GT(fit_memory(config, DType::f16, options).requests_of(140), 5);
  }
}

// Sparse weights count with what they take. Joined ones say only once what each says of its layout
// and where its records end.
TEST(MemoryFit, OfAConvertedModel) {
  const testing::TempDir directory;
  const std::filesystem::path converted = directory.path() / "out";
  convert_model({.input = testing::data("models/fable-llama-relu-8m"),
                 .output = converted,
                 .plan = SparsityPlan::uniform(
                     {.method = parse_prune_method("magnitude"), .sparsity = 0.6}, "tca_bme")});
  EngineOptions options;
  options.with_tokenizer = false;
  options.max_requests = 5;
  const Checkpoint checkpoint(converted);
  const WeightStore store(checkpoint);
  const ModelConfig config = read_model_config(converted);
  const MemoryFit fit = fit_memory(config, DType::f16, options, {.store = &store});
  const Engine engine = Engine::load(converted, options);
  const int64_t saved_bytes = 2 * 4 + 4;                     // by each joined part but the first
  const int64_t joined_parts = config.num_layers * (2 + 1);  // of q, k and v, of gate and up
  EXPECT_GE(fit.weights, engine.stats().weight_bytes);
  EXPECT_LE(fit.weights, engine.stats().weight_bytes + joined_parts * saved_bytes);
  EXPECT_EQ(fit.step, engine.stats().workspace_bytes);
  options.weight_format = "tca_bme";
  EXPECT_EQ(fit_memory(config, DType::f16, options, {.store = &store}).weights, fit.weights);
  options.weight_format = "tiled_csl";
  EXPECT_TRUE(
      testing::throws_error([&] { fit_memory(config, DType::f16, options, {.store = &store}); },
                            "as tiled_csl is known when they are encoded"));
}

TEST(MemoryFit, OfAModelThatDoesNotFit) {
  EngineOptions options;
  ModelConfig config = read_model_config(testing::data("models/fable-llama-relu-8m"));
  // Layers are many, but their shapes take no memory to speak of.
  config.num_layers = 2000;
  config.hidden_size = 1 << 16;
  config.head_dim = 256;
  config.num_heads = 256;
  config.num_kv_heads = 256;
  config.intermediate_size = 1 << 18;
  const MemoryFit fit = fit_memory(config, DType::f16, options);
  EXPECT_GT(fit.weights, int64_t{100} << 40);
  EXPECT_EQ(fit.kv_tokens, 0);
  EXPECT_EQ(fit.requests_of(100), 0);
}

}  // namespace
}  // namespace sparsellm
