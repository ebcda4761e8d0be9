#include "engine/memory_fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "engine/conversion/convert.h"
#include "engine/engine.h"
#include "kernels/base/device_cuda.h"
#include "kernels/paged_kv.h"
#include "models/build_decoder.h"
#include "models/random_plan.h"
#include "models/storage/safetensors.h"
#include "models/weights/checkpoint_loader.h"
#include "models/weights/random_weights.h"
#include "models/weights/shape_loader.h"
#include "sparse/tca_bme/format/record_layout.h"
#include "tests/testing/paths.h"
#include "tests/testing/reference.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

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
    EXPECT_EQ(fit.run_kv_tokens, fit.kv_tokens);
    options.kv_tokens = 0;
    const Engine other = Engine::load(directory, options);  // of five contexts, not of half of all
    EXPECT_EQ(fit_memory(config, DType::f16, options).run_kv_tokens,
              other.total_pages() * kPageSize);
    EXPECT_EQ(other.total_pages(), 5 * 9);
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
  ASSERT_EQ(fit.linear_weights.size(), 1u);
  EXPECT_EQ(fit.linear_weights[0].format, "tca_bme");
  const std::vector<FormatSum> loaded = engine.linear_weights();
  ASSERT_EQ(loaded.size(), 1u);
  EXPECT_EQ(loaded[0].nonzeros, fit.linear_weights[0].nonzeros);
  EXPECT_NEAR(
      static_cast<double>(loaded[0].nonzeros.value_or(0)) / static_cast<double>(loaded[0].elements),
      0.4, 0.01);
  EXPECT_EQ(loaded[0].dense_bytes, 2 * loaded[0].elements);
  options.weight_format = "tiled_csl";
  EXPECT_TRUE(testing::throws_error([&] { fit_memory(config, DType::f16, options); },
                                    "as tiled_csl is known when they are encoded"));
}

// What each of several ranks takes; an engine tells it of rank 0. On the CPU they share the memory.
TEST(MemoryFit, OfSeveralRanks) {
  const std::filesystem::path directory = testing::data("models/fable-llama-relu-8m");
  const ModelConfig config = read_model_config(directory);
  const Checkpoint checkpoint(directory);
  const WeightStore store(checkpoint);
  EngineOptions options;
  options.with_tokenizer = false;
  options.max_requests = 5;
  options.step_tokens = 100;
  options.context_size = 140;
  const MemoryFit alone = fit_memory(config, DType::f16, options, {.store = &store});
  for (const std::string format : {"", "tca_bme"}) {
    SCOPED_TRACE(format);
    options.weight_format = format;
    options.tensor_parallel.degree = 2;
    const MemoryFit fit = fit_memory(config, DType::f16, options, {.store = &store});
    const Engine engine = Engine::load(directory, options);
    EXPECT_EQ(fit.step, engine.stats().workspace_bytes);
    EXPECT_EQ(fit.kv_per_token * 2, alone.kv_per_token);
    EXPECT_EQ(fit.run_kv_tokens, engine.total_pages() * kPageSize);
    EXPECT_EQ(fit.device.total, alone.device.total / 2);
    if (format.empty()) {
      EXPECT_EQ(fit.weights, engine.stats().weight_bytes);
      EXPECT_LT(fit.weights, alone.weights * 2 / 3);
    } else {  // the one with more nonzeros
      EXPECT_GE(fit.weights, engine.stats().weight_bytes);
      EXPECT_LT(fit.weights, engine.stats().weight_bytes * 1.02);
    }
  }
}

// Weights that are converted while loading, as an engine has them: dense ones as the converter
// would, sparse ones in panels, whatever their format.
TEST(MemoryFit, OfWeightsThatAreConverted) {
  const std::filesystem::path model = testing::data("models/fable-llama-relu-8m");
  const std::vector<Inspection> inspections = inspect_model(
      {.input = model,
       .output = {},
       .plan = SparsityPlan::uniform({.method = parse_prune_method("none")}, "auto")});
  const Checkpoint checkpoint(model);
  const WeightStore store(checkpoint);
  const ModelConfig config = read_model_config(model);
  std::vector<int64_t> sparse_bytes;
  for (const std::string format : {"dense", "tca_bme", "tiled_csl"}) {
    SCOPED_TRACE(format);
    EngineOptions options;
    options.with_tokenizer = false;
    options.max_requests = 5;
    options.weight_format = format;
    const MemoryFit fit = fit_memory(config, DType::f16, options, {.store = &store});
    const auto inspected =
        std::find_if(inspections.begin(), inspections.end(),
                     [&](const Inspection& inspection) { return inspection.format == format; });
    ASSERT_NE(inspected, inspections.end());
    ASSERT_EQ(fit.linear_weights.size(), 1u);
    EXPECT_EQ(fit.weights, fit.linear_weights[0].bytes + inspected->conversion.other_bytes);
    if (format == "dense") {
      EXPECT_EQ(fit.linear_weights[0].bytes, inspected->conversion.bytes());
    } else {
      sparse_bytes.push_back(fit.linear_weights[0].bytes);
      EXPECT_EQ(sparse_bytes.back(), sparse_bytes.front());
    }
    const Engine engine = Engine::load(model, options);
    EXPECT_EQ(fit.weights, engine.stats().weight_bytes);
    EXPECT_EQ(fit.step, engine.stats().workspace_bytes);
  }
}

// Whether a model that does not fit would with smaller records is said without encoding its weights
// a second time.
TEST(MemoryFit, SmallRecordsThatWouldFitAreExpected) {
  const testing::TempDir folder;
  const std::filesystem::path model = folder.path() / "pruned";
  convert_model({.input = testing::data("models/fable-llama-relu-8m"),
                 .output = model,
                 .plan = SparsityPlan::uniform(
                     {.method = parse_prune_method("magnitude"), .sparsity = 0.85}, "dense")});
  const Checkpoint checkpoint(model);
  const WeightStore store(checkpoint);
  EngineOptions options;
  options.device = kPlannedGpu;
  options.weight_format = "tca_bme";
  options.gpu_memory = int64_t{1} << 30;
  options.gpu_memory_utilization = 1.0;
  options.kv_tokens = 256;
  const auto fit = [&] {
    return fit_memory(read_model_config(model), DType::f16, options, {.store = &store});
  };
  const auto need = [&] {
    const MemoryFit of = fit();
    EXPECT_GT(of.run_kv_tokens, 0);
    EXPECT_FALSE(of.fits_with_small_records);
    return of.weights + of.step + of.run_kv_tokens * of.kv_per_token;
  };
  const int64_t fast = need();
  options.records = "size";
  const int64_t small = need();
  ASSERT_LT(small, fast);
  options.records.clear();
  int64_t read = 0;
  options.progress = [&](int64_t done, int64_t) {
    EXPECT_GE(done, read);
    read = done;
  };
  options.gpu_memory = (fast + small) / 2;
  EXPECT_TRUE(fit().fits_with_small_records);
  EXPECT_GT(read, 0);
  read = 0;
  options.gpu_memory = small - (fast - small) / 2;
  EXPECT_FALSE(fit().fits_with_small_records);
}

// Only shapes are requested, so the GPU need not be there.
constexpr Device kCuda{Device::Kind::cuda, 0};

FormatSum only_format(const ModelConfig& config, ShapeLoader& shapes) {
  const std::vector<FormatSum> sums = build_decoder(config, shapes)->linear_weights();
  EXPECT_EQ(sums.size(), 1u);
  return sums.empty() ? FormatSum() : sums.front();
}

// On a GPU weights are encoded in the dtype that the model computes in, whatever they are stored
// in.
TEST(MemoryFit, OfWeightsThatAreConvertedInAnotherDType) {
  for (const std::filesystem::path& directory : testing::all_checkpoints()) {
    for (DType dtype : {DType::f16, DType::bf16}) {
      SCOPED_TRACE(directory.string() + " in " + std::string(name_of(dtype)));
      const testing::TempDir output;
      convert_model(
          {.input = directory,
           .output = output.path() / "out",
           .plan = SparsityPlan::uniform({.method = parse_prune_method("none")}, "tca_bme"),
           .dtype = dtype});
      const Checkpoint plain(directory);
      const WeightStore plain_store(plain);
      const Checkpoint converted(output.path() / "out");
      const WeightStore converted_store(converted);
      const ModelConfig config = read_model_config(directory);
      std::vector<int64_t> progress;
      ShapeLoader as_loaded(kCuda, dtype,
                            {.store = &plain_store,
                             .format = "tca_bme",
                             .threads = 1,
                             .progress = [&](int64_t done, int64_t total) {
                               EXPECT_EQ(total, plain.bytes());
                               progress.push_back(done);
                             }});
      ShapeLoader as_stored(kCuda, dtype, {.store = &converted_store});
      const FormatSum loaded = only_format(config, as_loaded);
      const FormatSum stored = only_format(config, as_stored);
      EXPECT_EQ(loaded.format, "tca_bme");
      EXPECT_EQ(loaded.format, stored.format);
      EXPECT_EQ(loaded.bytes, stored.bytes);
      EXPECT_EQ(loaded.nonzeros, stored.nonzeros);
      EXPECT_TRUE(loaded.nonzeros.has_value());
      EXPECT_EQ(as_loaded.loaded_bytes(), as_stored.loaded_bytes());
      EXPECT_TRUE(std::ranges::is_sorted(progress));
      ASSERT_FALSE(progress.empty());
      EXPECT_GT(progress.front(), 0);
      EXPECT_LE(progress.back(), plain.bytes());
    }
  }
}

TEST(MemoryFit, OfWeightsThatAFormatDoesNotTake) {
  const std::filesystem::path directory = testing::data("tiny/llama_bias");  // of f32
  const Checkpoint checkpoint(directory);
  const WeightStore store(checkpoint);
  const ModelConfig config = read_model_config(directory);
  EngineOptions options;
  options.weight_format = "tca_bme";
  EXPECT_TRUE(testing::throws_error(
      [&] { fit_memory(config, DType::f32, options, {.store = &store}); },
      "q_proj.weight\" cannot be loaded as tca_bme: tca_bme holds f16 and bf16 values, not f32"));
}

// Joined layers have the format of the part with the most rows, or the first of these.
TEST(MemoryFit, OfPartsInSeveralFormats) {
  const std::filesystem::path model = testing::data("models/fable-opt-8m");
  const testing::TempDir directory;
  for (const bool first_is_sparse : {false, true}) {
    SCOPED_TRACE(first_is_sparse);
    const std::filesystem::path plan = directory.write(
        "plan.json", std::string(R"({"rules": [{"tensors": )") +
                         (first_is_sparse ? R"(["*.q_proj"])" : R"(["*.k_proj", "*.v_proj"])") +
                         R"(, "prune": "none", "format": "tiled_csl"}], )" +
                         R"("default": {"prune": "none", "format": "dense"}})");
    const std::filesystem::path output = directory.path() / (first_is_sparse ? "first" : "others");
    convert_model({.input = model, .output = output, .plan = SparsityPlan::read(plan)});
    EngineOptions options;
    options.with_tokenizer = false;
    options.max_requests = 5;
    const Checkpoint checkpoint(output);
    const WeightStore store(checkpoint);
    const ModelConfig config = read_model_config(output);
    const MemoryFit fit = fit_memory(config, DType::f16, options, {.store = &store});
    const Engine engine = Engine::load(output, options);
    const std::vector<FormatSum> loaded = engine.linear_weights();
    ASSERT_EQ(fit.linear_weights.size(), first_is_sparse ? 2u : 1u);
    ASSERT_EQ(loaded.size(), fit.linear_weights.size());
    for (size_t i = 0; i < loaded.size(); ++i) {
      EXPECT_EQ(loaded[i].format, fit.linear_weights[i].format);
      EXPECT_EQ(loaded[i].elements, fit.linear_weights[i].elements);
      EXPECT_EQ(loaded[i].dense_bytes, fit.linear_weights[i].dense_bytes);
      // Those of a part that is stored as another are counted when it is encoded.
      EXPECT_FALSE(fit.linear_weights[i].nonzeros.has_value());
      EXPECT_EQ(loaded[i].nonzeros.has_value(), loaded[i].format == "tiled_csl");
    }
    EXPECT_EQ(fit.step, engine.stats().workspace_bytes);
    if (!first_is_sparse) {
      ShapeLoader on_gpu(kCuda, DType::f16, {.store = &store});
      EXPECT_EQ(only_format(config, on_gpu).format, "dense");
    }
  }
}

// On a GPU a joined layer counts with the type of its parts' values, also for the workspace, and
// with 16 bits a value if these are of several types. Scales in f32 do not make a model one of f32.
TEST(MemoryFit, OfNarrowValues) {
  const testing::TempDir directory;
  const std::filesystem::path model = testing::data("models/fable-llama-relu-8m");
  EngineOptions options;
  options.device = kPlannedGpu;
  options.gpu_memory = int64_t{1} << 30;
  options.gpu_memory_utilization = 1.0;
  options.kv_tokens = 256;
  options.max_requests = 1;
  const auto fit_of = [&](const std::filesystem::path& of) {
    const Checkpoint checkpoint(of);
    const WeightStore store(checkpoint);
    EXPECT_EQ(weight_dtype(checkpoint, {}, {}), DType::f16);
    return fit_memory(read_model_config(of), DType::f16, options, {.store = &store});
  };
  int made = 0;
  const auto converted = [&](const std::string& gate, const std::string& up) {
    const auto rule = [](const std::string& module, const std::string& values) {
      return R"({"tensors": "*.)" + module +
             R"(_proj", "prune": "magnitude", "sparsity": 0.5, "format": "tca_bme")" +
             (values.empty() ? "}" : R"(, "values": ")" + values + R"("})");
    };
    const std::filesystem::path plan =
        directory.write("plan.json", R"({"rules": [)" + rule("gate", gate) + ", " + rule("up", up) +
                                         R"(], "default": {"prune": "magnitude", "sparsity": 0.5,
                                           "format": "tca_bme"}})");
    const std::filesystem::path output = directory.path() / std::to_string(++made);
    convert_model({.input = model, .output = output, .plan = SparsityPlan::read(plan)});
    return output;
  };
  const MemoryFit wide = fit_of(converted("", ""));
  for (const auto& [gate, up] : {std::pair("i8", ""), std::pair("", "i8"), std::pair("i8", "f8"),
                                 std::pair("i4:128", "i4:32")}) {
    SCOPED_TRACE(std::string(gate) + " and " + up);
    const MemoryFit mixed = fit_of(converted(gate, up));
    EXPECT_NEAR(static_cast<double>(mixed.weights), static_cast<double>(wide.weights),
                0.02 * static_cast<double>(wide.weights));
    EXPECT_EQ(mixed.step, wide.step);
  }
  EXPECT_LT(fit_of(converted("i8", "i8")).weights, 0.95 * static_cast<double>(wide.weights));
  const std::filesystem::path pruned = directory.path() / "pruned";
  convert_model({.input = model,
                 .output = pruned,
                 .plan = SparsityPlan::uniform(
                     {.method = parse_prune_method("magnitude"), .sparsity = 0.5}, "dense")});
  for (const std::string values : {"i8", "i4:32"}) {
    const std::filesystem::path stored = directory.path() / std::to_string(++made);
    convert_model(
        {.input = pruned,
         .output = stored,
         .plan = SparsityPlan::uniform({.method = parse_prune_method("none")}, "tca_bme", values)});
    const MemoryFit of_stored = fit_of(stored);
    options.weight_format = "tca_bme";
    options.records = values;
    const MemoryFit of_loaded = fit_of(pruned);
    options.weight_format.clear();
    options.records.clear();
    EXPECT_EQ(of_stored.step, of_loaded.step) << values;
    EXPECT_EQ(of_stored.weights, of_loaded.weights) << values;
  }
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
  EXPECT_EQ(fit.run_kv_tokens, 0);
  EXPECT_EQ(fit.requests_of(100), 0);
}

TEST(MemoryFit, OfAKvCacheThatDoesNotFit) {
  EngineOptions options;
  const ModelConfig config = read_model_config(testing::data("models/fable-llama-relu-8m"));
  options.kv_tokens = 1600;
  const MemoryFit fits = fit_memory(config, DType::f16, options);
  EXPECT_EQ(fits.kv_tokens, 1600);
  // The machine has what the weights take, and less than twice its memory for the rest.
  options.kv_tokens = 2 * fits.device.total / fits.kv_per_token;
  const MemoryFit fit = fit_memory(config, DType::f16, options);
  EXPECT_GT(fit.device.free, fit.weights);
  EXPECT_EQ(fit.kv_tokens, 0);
  EXPECT_EQ(fit.requests_of(1), 0);
}

// Random sparse weights count with about what an engine then takes for them.
TEST(MemoryFit, OfRandomSparseWeights) {
  const std::filesystem::path file = testing::data("models/fable-llama-relu-8m") / "config.json";
  const ModelConfig config = read_model_config_file(file);
  EngineOptions options;
  options.with_tokenizer = false;
  for (const char* format : {"tca_bme", "tiled_csl"}) {
    std::vector<int64_t> bytes;
    for (double density : {0.2, 0.5}) {
      SCOPED_TRACE(fmt::format("{} {}", format, density));
      const RandomWeights weights{.sparsity = 1.0 - density, .format = format};
      const MemoryFit fit = fit_memory(config, DType::f16, options, {.random = weights});
      const Engine engine = Engine::load_random(file, weights, options);
      const auto taken = static_cast<double>(engine.stats().weight_bytes);
      EXPECT_NEAR(static_cast<double>(fit.weights), taken, 0.05 * taken);
      EXPECT_EQ(fit.step, engine.stats().workspace_bytes);
      bytes.push_back(fit.weights);
    }
    EXPECT_LT(bytes[0], bytes[1]);
  }
}

// Layers with shares of zeros and formats of their own.
TEST(MemoryFit, OfPlannedRandomWeights) {
  const std::filesystem::path file = testing::data("models/fable-llama-relu-8m") / "config.json";
  const ModelConfig config = read_model_config_file(file);
  EngineOptions options;
  options.with_tokenizer = false;
  const SparsityPlan plan =
      SparsityPlan::read(testing::source_dir() / "configs/plans/flash-llm.json");
  const RandomWeights weights{.planned = plan_random_linears(plan, config, {})};
  const MemoryFit fit = fit_memory(config, DType::f16, options, {.random = weights});
  const Engine engine = Engine::load_random(file, weights, options);
  const auto taken = static_cast<double>(engine.stats().weight_bytes);
  EXPECT_NEAR(static_cast<double>(fit.weights), taken, 0.05 * taken);
  EXPECT_EQ(fit.step, engine.stats().workspace_bytes);
  // gate_proj and up_proj of two blocks at each end are dense.
  ASSERT_EQ(fit.linear_weights.size(), 2u);
  int64_t sparse_elements = 0;
  for (const FormatSum& sum : fit.linear_weights) {
    if (sum.format == "dense") {
      EXPECT_EQ(sum.elements, 4 * 2 * config.intermediate_size * config.hidden_size);
    } else {
      EXPECT_EQ(sum.format, "tca_bme");
      sparse_elements = sum.elements;
      EXPECT_NEAR(static_cast<double>(*sum.nonzeros), 0.2 * static_cast<double>(sum.elements),
                  1e-3 * static_cast<double>(sum.elements));
    }
  }
  EXPECT_GT(sparse_elements, 0);
  RandomWeights impossible = weights;
  impossible.planned.at("model.layers.3.mlp.up_proj").sparsity = 1.5;
  EXPECT_TRUE(testing::throws_error(
      [&] { fit_memory(config, DType::f16, options, {.random = impossible}); },
      "model.layers.3.mlp.up_proj: the sparsity of random weights is 1.5"));
}

// A GPU of 140 GiB, some of which its driver holds.
constexpr int64_t kGiB = int64_t{1} << 30;
constexpr DeviceMemory kGpuMemory{.total = 140 * kGiB, .free = 139 * kGiB};

EngineOptions on_made_up_gpu(double utilization) {
  EngineOptions options;
  options.device = {.kind = Device::Kind::cuda, .index = 1};
  options.gpu_memory_utilization = utilization;
  return options;
}

TEST(RequireFit, TheShareHoldsEverything) {
  const MemoryNeed need{.weights = 60 * kGiB,
                        .step = 2 * kGiB,
                        .context_size = 2048,
                        .context = 5 * kGiB,
                        .kv = 7 * kGiB};  // 69 in all, and 1 of the driver
  EXPECT_NO_THROW(require_fit(need, kGpuMemory, Held::nothing, on_made_up_gpu(0.5)));
  // A benchmark makes a row of it and goes on with smaller batches.
  EXPECT_THROW(require_fit(need, kGpuMemory, Held::nothing, on_made_up_gpu(0.1)), OutOfMemory);
  for (int64_t MemoryNeed::*part : {&MemoryNeed::weights, &MemoryNeed::step, &MemoryNeed::kv}) {
    MemoryNeed more = need;
    more.*part += 1;
    EXPECT_TRUE(testing::throws_error(
        [&] { require_fit(more, kGpuMemory, Held::nothing, on_made_up_gpu(0.5)); },
        "the model does not fit on cuda:1 with a GPU memory utilization of 0.5: weights 61440.0 "
        "MiB, step 2048.0 MiB, one context of 2048 tokens 5120.0 MiB, KV cache 7168.0 MiB; the "
        "share is 71680.0 MiB, of which others hold 1024.0 MiB; 142336.0 MiB are free"));
    EXPECT_NO_THROW(require_fit(more, kGpuMemory, Held::nothing, on_made_up_gpu(0.51)));
  }
  const DeviceMemory others{.total = kGpuMemory.total, .free = kGpuMemory.free - 1};
  EXPECT_TRUE(testing::throws_error(
      [&] { require_fit(need, others, Held::nothing, on_made_up_gpu(0.5)); }, "does not fit"));
  const DeviceMemory full{.total = kGpuMemory.total, .free = 69 * kGiB - 1};
  EXPECT_TRUE(testing::throws_error(
      [&] { require_fit(need, full, Held::nothing, on_made_up_gpu(1.0)); }, "does not fit"));
}

TEST(RequireFit, WhatIsThereAlreadyIsNotFree) {
  const MemoryNeed need{.weights = 60 * kGiB,
                        .step = 2 * kGiB,
                        .context_size = 2048,
                        .context = 5 * kGiB,
                        .kv = 7 * kGiB};
  // Libraries have taken 1 GiB beside weights and step.
  const DeviceMemory loaded{.total = kGpuMemory.total, .free = kGpuMemory.free - 63 * kGiB};
  EXPECT_NO_THROW(require_fit(need, loaded, Held::weights_and_step, on_made_up_gpu(0.51)));
  EXPECT_TRUE(testing::throws_error(
      [&] { require_fit(need, loaded, Held::weights_and_step, on_made_up_gpu(0.5)); },
      "the share is 71680.0 MiB, of which others hold 2048.0 MiB; 77824.0 MiB are free"));
}

TEST(RequireFit, SizesThatOverflowAreRefused) {
  const MemoryNeed need{.weights = std::numeric_limits<int64_t>::max() - 5,
                        .step = 3,
                        .context_size = 1,
                        .context = 16,
                        .kv = 16};
  EXPECT_TRUE(testing::throws_error(
      [&] { require_fit(need, kGpuMemory, Held::nothing, on_made_up_gpu(0.5)); },
      "does not fit 64 bits"));
}

// On the CPU everything that is free may be taken.
class MemoryOnTheCpu : public ::testing::Test {
 protected:
  MemoryOnTheCpu() {
    options_.max_requests = 3;
    options_.context_size = 100;
    fit_ = fit_memory(config_, DType::f16, options_);
  }
  int64_t kv_bytes(int64_t pages) const { return pages * kPageSize * fit_.kv_per_token; }

  const ModelConfig config_ = read_model_config(testing::data("models/fable-llama-relu-8m"));
  EngineOptions options_;
  MemoryFit fit_;
};

TEST_F(MemoryOnTheCpu, RequireModelFitsIsExact) {
  const int64_t others = fit_.weights + fit_.step;
  const auto require_fits = [&](const DeviceMemory& memory) {
    ShapeLoader shapes({}, DType::f16);
    require_model_fits(config_, shapes, options_, memory);
  };
  const auto expect_edge = [&](int64_t total, int64_t need, const std::string& message) {
    SCOPED_TRACE(message);
    EXPECT_NO_THROW(require_fits({.total = total, .free = need}));
    EXPECT_THROW(require_fits({.total = total, .free = need - 1}), OutOfMemory);
    EXPECT_TRUE(
        testing::throws_error([&] { require_fits({.total = total, .free = need - 1}); }, message));
  };
  const auto mib = [](int64_t bytes) {
    return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
  };
  const std::string parts = fmt::format(
      "the model does not fit on cpu with a GPU memory utilization of 0.95: weights {}, "
      "step {}, one context of 100 tokens {}, KV cache ",
      mib(fit_.weights), mib(fit_.step), mib(kv_bytes(7)));
  const int64_t all = others + kv_bytes(21);  // three contexts
  expect_edge(kGiB, all,
              fmt::format("{}{}; the share is 1024.0 MiB, of which others hold {}; {} are free",
                          parts, mib(kv_bytes(21)), mib(kGiB - all + 1), mib(all - 1)));
  expect_edge(4 * kv_bytes(10), others + kv_bytes(20), parts + mib(kv_bytes(20)));  // half of all
  expect_edge(0, others + kv_bytes(7), parts + mib(kv_bytes(7)));  // one context at least
  options_.kv_tokens = 40;
  expect_edge(kGiB, others + kv_bytes(3), parts + mib(kv_bytes(3)));
}

TEST_F(MemoryOnTheCpu, LinearLayersHaveWhatAllElseLeaves) {
  ASSERT_EQ(fit_.linear_weights.size(), 1u);
  const int64_t others = fit_.weights - fit_.linear_weights[0].bytes + fit_.step;
  EXPECT_GT(fit_.weights, fit_.linear_weights[0].bytes);
  const auto room = [&](const DeviceMemory& memory) {
    ShapeLoader shapes({}, DType::f16);
    return room_for_linear_layers(config_, shapes, options_, memory);
  };
  EXPECT_EQ(room({.total = 0, .free = kGiB}), kGiB - others - kv_bytes(7));  // one context
  EXPECT_EQ(room({.total = 0, .free = 0}), -others - kv_bytes(7));
  options_.kv_tokens = 40;
  EXPECT_EQ(room({.total = kGiB, .free = kGiB}), kGiB - others - kv_bytes(3));
}

// With a cache of one context, however much is free.
TEST(RoomForLinearLayers, OnAGpu) {
  if (cuda_facts().runtime_version == 0) {
    GTEST_SKIP() << "what a step takes on a GPU is known to a build with its kernels";
  }
  const ModelConfig config =
      read_model_config_file(testing::source_dir() / "configs" / "opt-66b.json");
  const auto room = [&](const EngineOptions& options) {
    ShapeLoader shapes(options.device, DType::f16);
    return room_for_linear_layers(config, shapes, options, kGpuMemory);
  };
  EngineOptions options = on_made_up_gpu(1.0);
  const int64_t most = room(options);
  EXPECT_LT(most, kGpuMemory.free - 9 * kGiB / 2);
  EXPECT_GT(most, kGpuMemory.free - 10 * kGiB);  // embeddings, step and cache
  options.gpu_memory_utilization = 0.5;
  EXPECT_EQ(room(options), most - 70 * kGiB);
  options.kv_tokens = 1024;  // half of one context
  EXPECT_EQ(room(options), most - 70 * kGiB + 9 * kGiB / 4);
}

// By the shapes of a model that need not be there: 122 GiB of weights, 4.5 GiB a context.
TEST(RequireModelFits, BeforeAnythingIsLoaded) {
  if (cuda_facts().runtime_version == 0) {
    GTEST_SKIP() << "what a step takes on a GPU is known to a build with its kernels";
  }
  const ModelConfig config =
      read_model_config_file(testing::source_dir() / "configs" / "opt-66b.json");
  const auto require_fits = [&](const EngineOptions& options, LinearShapes linears = {}) {
    ShapeLoader shapes(options.device, DType::f16, std::move(linears));
    require_model_fits(config, shapes, options, kGpuMemory);
  };
  EXPECT_NO_THROW(require_fits(on_made_up_gpu(0.95)));
  EXPECT_TRUE(testing::throws_error([&] { require_fits(on_made_up_gpu(0.5)); },
                                    "utilization of 0.5: weights 125"));
  EXPECT_TRUE(testing::throws_error([&] { require_fits(on_made_up_gpu(0.9)); },
                                    "one context of 2048 tokens 4608.0 MiB, KV cache 4608.0 MiB"));

  EngineOptions options = on_made_up_gpu(0.5);
  options.kv_bytes = kGiB;
  EXPECT_TRUE(
      testing::throws_error([&] { require_fits(options); }, "4608.0 MiB, KV cache 1008.0 MiB"));
  options.gpu_memory_utilization = 0.95;
  EXPECT_NO_THROW(require_fits(options));
  options.kv_bytes = 16 * kGiB;
  EXPECT_TRUE(testing::throws_error([&] { require_fits(options); }, "KV cache 163"));
  options.kv_bytes = 0;
  options.kv_tokens = 100;
  EXPECT_NO_THROW(require_fits(options));
  options.kv_tokens = int64_t{1} << 30;
  EXPECT_TRUE(testing::throws_error([&] { require_fits(options); }, "does not fit on cuda:1"));
  options.kv_tokens = int64_t{1} << 60;
  EXPECT_TRUE(testing::throws_error([&] { require_fits(options); }, "does not fit 64 bits"));
}

TEST(FittingKvPages, WithinTheShare) {
  const KvShape shape{.layers = 64, .kv_heads = 72, .head_dim = 128, .dtype = DType::f16};
  const int64_t page_bytes = kPageSize * shape.bytes_per_token();
  const MemoryNeed others{.weights = 60 * kGiB, .step = 2 * kGiB, .context_size = 2048};
  const DeviceMemory loaded{.total = kGpuMemory.total, .free = kGpuMemory.free - 62 * kGiB};
  const auto pages = [&](const EngineOptions& options) {
    return fitting_kv_pages(others, shape, options, loaded);
  };
  for (double utilization : {0.5, 0.7, 0.95, 1.0}) {
    const EngineOptions options = on_made_up_gpu(utilization);
    const int64_t share = static_cast<int64_t>(utilization * static_cast<double>(kGpuMemory.total));
    EXPECT_GE(pages(options), pages_for(2048));
    EXPECT_LE(kGiB + others.weights + others.step + pages(options) * page_bytes, share);
  }
  // There is room for a part of a context.
  EngineOptions options = on_made_up_gpu(0.46);
  EXPECT_TRUE(testing::throws_error([&] { pages(options); }, "one context of 2048 tokens"));
  options.kv_tokens = 100;
  EXPECT_EQ(pages(options), pages_for(100));
  options.kv_tokens = 4096;
  EXPECT_TRUE(testing::throws_error([&] { pages(options); }, "KV cache 9"));
  options.device = {};  // which lends what is never touched
  EXPECT_EQ(pages(options), pages_for(4096));
}

}  // namespace
}  // namespace sparsellm
