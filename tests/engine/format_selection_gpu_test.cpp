// The weight format "auto" on the first CUDA device.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/conversion/convert.h"
#include "engine/engine.h"
#include "engine/format_selection.h"
#include "engine/memory_fit.h"
#include "kernels/base/device_info.h"
#include "models/linear_layers.h"
#include "models/loaded_format_meter.h"
#include "models/random_plan.h"
#include "models/storage/safetensors.h"
#include "models/weights/checkpoint_loader.h"
#include "models/weights/random_loader.h"
#include "sparse/dense/dense.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/tca_bme.h"
#include "tests/engine/engine_gpu_fixture.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::kGpu;
using By = FormatChoice::By;

class GpuFormatSelection : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "there is no CUDA device";
    }
  }

  EngineOptions automatic() const {
    EngineOptions options = testing::on_gpu();
    options.max_requests = 4;
    options.context_size = 128;
    options.weight_format = "auto";
    options.tuning = Tuning::measured;
    options.tune_cache = folder_.path() / "kernels.json";
    return options;
  }
  fs::path pruned(const std::string& model, const char* format, double sparsity) const {
    const fs::path output = folder_.path() / fmt::format("{}-{}-{}", model, format, sparsity);
    convert_model({.input = testing::data("models") / model,
                   .output = output,
                   .plan = SparsityPlan::uniform(
                       {.method = parse_prune_method("magnitude"), .sparsity = sparsity}, format)});
    return output;
  }

  testing::TempDir folder_;
};

// The times are positive, the choice is the fastest within 2 %.
void expect_fastest(const FormatChoice& choice) {
  ASSERT_GE(choice.times.size(), 2u);
  double best = std::numeric_limits<double>::infinity();
  double taken = 0.0;
  for (const FormatTime& time : choice.times) {
    ASSERT_TRUE(time.seconds.has_value()) << time.in.format;
    EXPECT_GT(*time.seconds, 0.0);
    EXPECT_LT(*time.seconds, 0.1);
    EXPECT_GT(time.bytes, 0);
    best = std::min(best, *time.seconds);
    taken = time.in.format == choice.in.format ? *time.seconds : taken;
  }
  EXPECT_GT(taken, 0.0);
  EXPECT_LE(taken, 1.021 * best);  // times in a cache are rounded
}

TEST_F(GpuFormatSelection, OfRandomWeightsIsMeasuredOnceAndKept) {
  const fs::path config = testing::source_dir() / "configs" / "opt-125m.json";
  const RandomWeights weights{.sparsity = 0.7, .format = "auto"};
  std::vector<std::string> formats;
  for (const By by : {By::measurement, By::cache}) {
    Engine engine = Engine::load_random(config, weights, automatic());
    const std::vector<FormatChoice>& choices = engine.format_choices();
    ASSERT_EQ(choices.size(), 4u);  // qkv, out, fc1, fc2
    int64_t bytes = 0;
    for (size_t i = 0; i < choices.size(); ++i) {
      EXPECT_EQ(choices[i].by, by);
      EXPECT_EQ(choices[i].kind.count(), 12);
      expect_fastest(choices[i]);
      bytes += 12 * choices[i].bytes();
      if (by == By::measurement) {
        formats.push_back(choices[i].in.format);
      } else {
        EXPECT_EQ(choices[i].in.format, formats[i]);
      }
    }
    int64_t loaded = 0;
    for (const FormatSum& sum : engine.linear_weights()) {
      EXPECT_NE(std::ranges::find(formats, sum.format), formats.end());
      loaded += sum.bytes;
    }
    EXPECT_NEAR(static_cast<double>(loaded), static_cast<double>(bytes),
                0.01 * static_cast<double>(bytes));
    if (by == By::cache) {
      EXPECT_EQ(engine.stats().tuned_choices, 0);
    }
    for (const Completion& completion : engine.generate(testing::requests_of(engine, 3))) {
      EXPECT_EQ(completion.error, "");
    }
  }
}

// Kinds that a plan makes are tried apart, each with its zeros; what it names is kept.
TEST_F(GpuFormatSelection, OfPlannedRandomWeights) {
  const fs::path file = testing::source_dir() / "configs" / "opt-125m.json";
  const ModelConfig config = read_model_config_file(file);
  const SparsityPlan plan = SparsityPlan::read(folder_.write("plan.json", R"({"rules": [
      {"tensors": "*.out_proj", "prune": "none", "format": "dense"},
      {"tensors": "*", "layers": {"ends": "1/6"}, "prune": "random", "sparsity": 0.5}],
      "default": {"prune": "random", "sparsity": 0.8}})"));
  EngineOptions options = automatic();
  const RandomWeights weights{
      .format = "auto",
      .planned = plan_random_linears(plan, config, {.device = kGpu, .format = "auto"})};
  Engine engine = Engine::load_random(file, weights, options);
  const std::vector<FormatChoice>& choices = engine.format_choices();
  ASSERT_EQ(choices.size(), 3u * 2u + 1u);
  int64_t bytes = 0;
  for (const FormatChoice& choice : choices) {
    const double density = choice.kind.weight.density;
    bytes += choice.bytes() * choice.kind.count();
    if (choice.by == By::plan) {
      EXPECT_EQ(choice.in.format, "dense");
      EXPECT_EQ(choice.kind.count(), 12);
      EXPECT_EQ(density, 1.0);
      continue;
    }
    EXPECT_EQ(choice.by, By::measurement);
    expect_fastest(choice);
    EXPECT_EQ(choice.kind.count(), density > 0.4 ? 4 : 8);
    EXPECT_NEAR(density, density > 0.4 ? 0.5 : 0.2, 1e-12);
  }
  int64_t loaded = 0;
  for (const FormatSum& sum : engine.linear_weights()) {
    loaded += sum.bytes;
  }
  EXPECT_NEAR(static_cast<double>(loaded), static_cast<double>(bytes),
              0.01 * static_cast<double>(bytes));
  for (const FormatChoice& choice :
       fit_memory(config, DType::f16, options, {.random = weights}).formats) {
    EXPECT_TRUE(choice.by == By::cache || choice.by == By::plan);
  }
  for (const Completion& completion : engine.generate(testing::requests_of(engine, 3))) {
    EXPECT_EQ(completion.error, "");
  }
}

// What trials tune is not tuned again: an engine that is loaded after one that knows the formats
// has only the buckets of prompts left.
TEST_F(GpuFormatSelection, TrialsTuneForTheLoad) {
  const fs::path config = testing::source_dir() / "configs" / "opt-125m.json";
  EngineOptions options = automatic();
  const int64_t after_trials =
      Engine::load_random(config, {.sparsity = 0.7, .format = "auto"}, options)
          .stats()
          .tuned_choices;
  options.tune_cache = folder_.path() / "dense.json";
  const int64_t alone = Engine::load_random(config, {.sparsity = 0.7, .format = "dense"}, options)
                            .stats()
                            .tuned_choices;
  EXPECT_LT(after_trials, alone);
}

TEST_F(GpuFormatSelection, OfACheckpointInAnyFormat) {
  for (const char* stored : {"dense", "tiled_csl", "tca_bme"}) {
    SCOPED_TRACE(stored);
    const fs::path model = pruned("fable-llama-relu-8m", stored, 0.7);
    Engine engine = Engine::load(model, automatic());
    for (const FormatChoice& choice : engine.format_choices()) {
      EXPECT_EQ(choice.by, By::measurement);
      EXPECT_EQ(choice.kind.weight.stored, stored == std::string("dense") ? "" : stored);
      expect_fastest(choice);
    }
    for (const Completion& completion : engine.generate(testing::requests_of(engine, 3))) {
      EXPECT_EQ(completion.error, "");
    }
  }
}

// The same bits as with the format that rules name.
TEST_F(GpuFormatSelection, DeterministicMeasuresNothing) {
  const fs::path model = pruned("fable-llama-relu-8m", "dense", 0.7);
  EngineOptions options = automatic();
  options.deterministic = true;
  Engine automatic_engine = Engine::load(model, options);
  for (const FormatChoice& choice : automatic_engine.format_choices()) {
    EXPECT_EQ(choice.by, By::rules);
    EXPECT_EQ(choice.in.format, "tca_bme");
  }
  options.weight_format = "tca_bme";
  Engine named = Engine::load(model, options);
  const std::vector<Request> requests = testing::requests_of(named, 4);
  const std::vector<Completion> got = automatic_engine.generate(requests);
  const std::vector<Completion> expected = named.generate(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    testing::expect_same(got[i], expected[i]);
  }
}

// Measuring reads weights of which nothing stays. What is thrown then ends it.
TEST_F(GpuFormatSelection, MeasuringReportsThatNothingIsLoadedYet) {
  struct Cancelled {};
  const fs::path model = pruned("fable-llama-relu-8m", "dense", 0.7);
  const Checkpoint checkpoint(model);
  EngineOptions options = automatic();
  int calls = 0;
  options.progress = [&](int64_t done, int64_t total) {
    EXPECT_EQ(done, 0);
    EXPECT_EQ(total, checkpoint.bytes());
    if (++calls == 3) {
      throw Cancelled();
    }
  };
  EXPECT_THROW(select_formats(read_model_config(model), checkpoint, options), Cancelled);
  EXPECT_EQ(calls, 3);
}

TEST_F(GpuFormatSelection, WhatDoesNotFitBecomesSmaller) {
  const fs::path model = pruned("fable-llama-relu-8m", "dense", 0.7);
  const Checkpoint checkpoint(model);
  const ModelConfig config = read_model_config(model);
  EngineOptions options = automatic();
  options.kv_bytes = device_memory(kGpu).total;  // which leaves nothing for weights
  for (const FormatChoice& choice : select_formats(config, checkpoint, options)) {
    const auto smallest = std::ranges::min_element(choice.times, {}, &FormatTime::bytes);
    EXPECT_EQ(choice.in.format, smallest->in.format);
  }
  options.kv_bytes = 0;
  for (const FormatChoice& choice : select_formats(config, checkpoint, options)) {
    EXPECT_EQ(choice.by, By::cache);
    EXPECT_FALSE(choice.for_memory);
  }
}

// From 79 % zeros on the fastest records have pairs; without them they take less.
TEST_F(GpuFormatSelection, WhereTheFastestDoNotFitSmallRecordsAreTried) {
  const fs::path config_file = testing::source_dir() / "configs" / "opt-125m.json";
  const ModelConfig config = read_model_config_file(config_file);
  const RandomWeights weights{.sparsity = 0.8, .format = "auto"};
  const LayerFormat small{.format = "tca_bme", .layout = "size"};
  EngineOptions options = automatic();
  for (const FormatChoice& choice : select_formats(config, weights, options)) {
    EXPECT_EQ(std::ranges::find(choice.times, small, &FormatTime::in), choice.times.end());
  }
  options.kv_bytes = device_memory(kGpu).total;
  std::vector<FormatChoice> choices = select_formats(config, weights, options);
  ASSERT_EQ(choices.size(), 4u);
  int64_t bytes = 0;
  for (FormatChoice& choice : choices) {
    const auto tried = std::ranges::find(choice.times, small, &FormatTime::in);
    ASSERT_NE(tried, choice.times.end());
    EXPECT_GT(tried->seconds.value_or(0.0), 0.0);
    EXPECT_LT(tried->bytes, choice.bytes({"tca_bme"}));
    const auto smallest = std::ranges::min_element(choice.times, {}, &FormatTime::bytes);
    EXPECT_EQ(choice.in, smallest->in);
    choice.in = small;
    bytes += choice.bytes_of_all();
  }
  options.kv_bytes = 0;
  Engine engine =
      Engine::load_random(config_file, in_formats(weights, layer_formats(choices)), options);
  ASSERT_EQ(engine.linear_weights().size(), 1u);
  EXPECT_EQ(engine.linear_weights()[0].format, "tca_bme");
  EXPECT_NEAR(static_cast<double>(engine.linear_weights()[0].bytes), static_cast<double>(bytes),
              0.01 * static_cast<double>(bytes));
  for (const Completion& completion : engine.generate(testing::requests_of(engine, 3))) {
    EXPECT_EQ(completion.error, "");
  }
}

// A load for more requests measures only the token buckets that are new.
TEST_F(GpuFormatSelection, MoreRequestsKeepWhatIsMeasured) {
  const fs::path file = testing::source_dir() / "configs" / "opt-125m.json";
  const ModelConfig config = read_model_config_file(file);
  const RandomWeights weights{.sparsity = 0.7, .format = "auto"};
  EngineOptions options = automatic();
  const auto all_by = [&](By by) {
    const std::vector<FormatChoice> choices = select_formats(config, weights, options);
    return std::ranges::all_of(choices, [&](const FormatChoice& c) { return c.by == by; });
  };
  EXPECT_TRUE(all_by(By::measurement));
  options.max_requests = 8;
  EXPECT_TRUE(all_by(By::measurement));
  for (const int64_t requests : {2, 4, 8}) {
    options.max_requests = requests;
    EXPECT_TRUE(all_by(By::cache)) << requests;
  }
  RandomWeights by_row = weights;
  by_row.pattern = {.kind = ZeroPattern::Kind::rows};
  EXPECT_EQ(select_formats(config, by_row, options).front().by, By::measurement);
}

// --fit goes by what was measured, or by rules, and measures nothing.
TEST_F(GpuFormatSelection, TheFitSaysWhatALoadTakes) {
  const fs::path model = pruned("fable-llama-relu-8m", "tca_bme", 0.7);
  const ModelConfig config = read_model_config(model);
  const Checkpoint checkpoint(model);
  const WeightStore store(checkpoint);
  const EngineOptions options = automatic();
  const auto fit = [&] {
    return fit_memory(config, weight_dtype(checkpoint, kGpu, {}), options, {.store = &store});
  };
  for (const FormatChoice& choice : fit().formats) {
    EXPECT_EQ(choice.by, By::rules);
  }
  const Engine engine = Engine::load(model, options);
  const MemoryFit after = fit();
  ASSERT_EQ(after.formats.size(), engine.format_choices().size());
  for (size_t i = 0; i < after.formats.size(); ++i) {
    EXPECT_EQ(after.formats[i].by, By::cache);
    EXPECT_EQ(after.formats[i].in.format, engine.format_choices()[i].in.format);
  }
}

TEST_F(GpuFormatSelection, AMeterLeavesNothingOnTheDevice) {
  const fs::path config_file = testing::source_dir() / "configs" / "opt-125m.json";
  const ModelConfig config = read_model_config_file(config_file);
  const RandomWeights weights{.sparsity = 0.8};
  EngineOptions options = automatic();
  select_formats(config, weights, options);  // what CUDA keeps from the first time on
  const int64_t before = device_memory(kGpu).free;
  options.tune_cache.clear();
  select_formats(config, weights, options);
  EXPECT_GE(device_memory(kGpu).free, before - (int64_t{64} << 20));
}

// A large layer with few nonzeros, of which the outcome is known: on compute capability 9.0 bitmaps
// take a third of the time (docs/performance.md).
TEST_F(GpuFormatSelection, BitmapsOfALargeLayerAreFaster) {
  const JoinedLinear layer{.parts = {{.module = "a", .block = 0, .rows = 28672, .columns = 7168}},
                           .rows = 28672,
                           .columns = 7168,
                           .has_bias = true,
                           .activation = {.kind = Activation::Kind::relu},
                           .request = {.parts = {{.module = "a", .out = 28672}},
                                       .in = 7168,
                                       .bias = WeightRequest::Bias::yes,
                                       .activation = {.kind = Activation::Kind::relu}}};
  const LayerKind kind{.layer = layer,
                       .weight = {.density = 0.2, .stored = {}, .dtype = DType::f16},
                       .first_weights = {"a.weight"}};
  TuneCache cache;
  LoadedFormatMeter meter({.device = kGpu,
                           .loader = [](const LayerFormat& in) -> std::unique_ptr<WeightLoader> {
                             return std::make_unique<RandomLoader>(
                                 kGpu, in_format({.sparsity = 0.8}, in));
                           },
                           .most_tokens = 2048},
                          cache);
  const std::vector<int64_t> tokens{1, 8};
  const FormatMeter::Measured dense = meter.measure(kind, {"dense"}, tokens);
  const FormatMeter::Measured bitmap = meter.measure(kind, {"tca_bme"}, tokens);
  EXPECT_EQ(dense.bytes, int64_t{2} * 28672 * 7168);
  EXPECT_LT(bitmap.bytes, dense.bytes / 2);
  ASSERT_EQ(dense.seconds.size(), tokens.size());
  ASSERT_EQ(bitmap.seconds.size(), tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_GT(dense.seconds[i], 50e-6);
    EXPECT_GT(bitmap.seconds[i], 10e-6);
    if (query_gpu(0).compute_capability == 90) {
      EXPECT_LT(bitmap.seconds[i], 0.7 * dense.seconds[i]);
    }
  }
}

}  // namespace
}  // namespace sparsellm
