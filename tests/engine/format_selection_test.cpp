// The weight format "auto" without a GPU: rules choose, when a model is loaded and beforehand.

#include "engine/format_selection.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/conversion/convert.h"
#include "engine/engine.h"
#include "engine/memory_fit.h"
#include "models/build_decoder.h"
#include "models/linear_layers.h"
#include "models/random_plan.h"
#include "models/storage/safetensors.h"
#include "models/weights/checkpoint_loader.h"
#include "models/weights/shape_loader.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::TempDir;

constexpr Device kCuda{Device::Kind::cuda, 0};  // only shapes are requested

fs::path llama() { return testing::data("models/fable-llama-relu-8m"); }

EngineOptions automatic() {
  EngineOptions options;
  options.with_tokenizer = false;
  options.max_requests = 4;
  options.context_size = 64;
  options.weight_format = "auto";
  return options;
}

fs::path pruned(const TempDir& folder, double sparsity, const std::string& format) {
  fs::path output = folder.path() / fmt::format("{}-{}", format, sparsity);
  convert_model({.input = llama(),
                 .output = output,
                 .plan = SparsityPlan::uniform(
                     {.method = parse_prune_method("magnitude"), .sparsity = sparsity}, format)});
  return output;
}

std::vector<std::string> formats_of(const std::vector<FormatChoice>& choices) {
  std::vector<std::string> formats;
  for (const FormatChoice& choice : choices) {
    EXPECT_EQ(choice.by, FormatChoice::By::rules);
    formats.push_back(choice.in.format);
  }
  return formats;
}

using Formats = std::vector<std::string>;

TEST(FormatSelection, OnTheCpuRulesChoose) {
  const TempDir folder;
  Engine dense = Engine::load(llama(), automatic());
  EXPECT_EQ(formats_of(dense.format_choices()), Formats(4, "dense"));
  ASSERT_EQ(dense.linear_weights().size(), 1u);
  EXPECT_EQ(dense.linear_weights()[0].format, "dense");

  Engine sparse = Engine::load(pruned(folder, 0.7, "dense"), automatic());
  EXPECT_EQ(formats_of(sparse.format_choices()), Formats(4, "tca_bme"));
  EXPECT_EQ(sparse.linear_weights()[0].format, "tca_bme");
  EXPECT_EQ(sparse.format_choices()[0].kind.count(), 8);
  EXPECT_NEAR(sparse.format_choices()[0].kind.weight.density, 0.3, 0.01);

  EngineOptions stored = automatic();
  stored.weight_format.clear();
  EXPECT_TRUE(Engine::load(llama(), stored).format_choices().empty());
}

TEST(FormatSelection, OnTheCpuWhatIsStoredStaysUnlessRulesSayDense) {
  const TempDir folder;
  const Engine stored = Engine::load(pruned(folder, 0.7, "tiled_csl"), automatic());
  EXPECT_EQ(formats_of(stored.format_choices()), Formats(4, "tiled_csl"));
  const Engine dense = Engine::load(pruned(folder, 0.2, "tca_bme"), automatic());
  EXPECT_EQ(formats_of(dense.format_choices()), Formats(4, "dense"));
  EXPECT_EQ(dense.linear_weights()[0].format, "dense");
}

TEST(FormatSelection, TheFitIsWhatAnEngineTakes) {
  const TempDir folder;
  for (const fs::path& model : {llama(), pruned(folder, 0.6, "dense"),
                                pruned(folder, 0.6, "tca_bme"), pruned(folder, 0.2, "tca_bme")}) {
    SCOPED_TRACE(model);
    const EngineOptions options = automatic();
    const Checkpoint checkpoint(model);
    const WeightStore store(checkpoint);
    const MemoryFit fit = fit_memory(read_model_config(model), weight_dtype(checkpoint, {}, {}),
                                     options, {.store = &store});
    const Engine engine = Engine::load(model, options);
    EXPECT_EQ(formats_of(fit.formats), formats_of(engine.format_choices()));
    EXPECT_EQ(fit.weights, engine.stats().weight_bytes);
    EXPECT_EQ(fit.step, engine.stats().workspace_bytes);
    EXPECT_EQ(fit.linear_weights[0].format, engine.linear_weights()[0].format);
  }
}

TEST(FormatSelection, OfRandomWeights) {
  const fs::path config = llama() / "config.json";
  const auto formats = [&](double sparsity) {
    const Engine engine =
        Engine::load_random(config, {.sparsity = sparsity, .format = "auto"}, automatic());
    EXPECT_EQ(engine.linear_weights().size(), 1u);
    EXPECT_EQ(engine.linear_weights()[0].format, engine.format_choices()[0].in.format);
    return formats_of(engine.format_choices());
  };
  EXPECT_EQ(formats(0.2), Formats(4, "dense"));
  EXPECT_EQ(formats(0.8), Formats(4, "tca_bme"));
}

// Each layer has the density of its plan, and the format if that names one.
TEST(FormatSelection, OfPlannedRandomWeights) {
  const fs::path file = llama() / "config.json";
  const ModelConfig config = read_model_config_file(file);
  const TempDir dir;
  const SparsityPlan plan = SparsityPlan::read(dir.write("plan.json", R"({"rules": [
      {"tensors": "*.o_proj", "prune": "none", "format": "tca_bme"},
      {"tensors": "*.down_proj", "layers": [0, 2], "prune": "magnitude", "sparsity": 0.2},
      {"tensors": "*.gate_proj", "prune": "magnitude", "sparsity": 0.9}],
      "default": {"prune": "magnitude", "sparsity": 0.7}})"));
  const RandomWeights weights{.format = "auto",
                              .planned = plan_random_linears(plan, config, {.format = "auto"})};
  const Engine engine = Engine::load_random(file, weights, automatic());
  const std::vector<FormatChoice>& choices = engine.format_choices();
  ASSERT_EQ(choices.size(), 5u);
  const auto expect = [&](size_t i, const char* format, FormatChoice::By by, double density,
                          int64_t count) {
    SCOPED_TRACE(i);
    EXPECT_EQ(choices[i].in.format, format);
    EXPECT_EQ(choices[i].by, by);
    EXPECT_NEAR(choices[i].kind.weight.density, density, 1e-12);
    EXPECT_EQ(choices[i].kind.count(), count);
  };
  using By = FormatChoice::By;
  expect(0, "tca_bme", By::rules, 0.3, 8);  // q, k, v
  expect(1, "tca_bme", By::plan, 1.0, 8);
  expect(2, "tca_bme", By::rules, 0.2, 8);  // gate, up
  expect(3, "tca_bme", By::rules, 0.3, 6);
  expect(4, "dense", By::rules, 0.8, 2);
  const MemoryFit fit = fit_memory(config, DType::f16, automatic(), {.random = weights});
  EXPECT_EQ(fit.formats.size(), choices.size());
  EXPECT_NEAR(static_cast<double>(fit.weights), static_cast<double>(engine.stats().weight_bytes),
              0.05 * static_cast<double>(fit.weights));
  ASSERT_EQ(engine.linear_weights().size(), 2u);
  ASSERT_EQ(fit.linear_weights.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(fit.linear_weights[i].format, engine.linear_weights()[i].format);
    EXPECT_EQ(fit.linear_weights[i].elements, engine.linear_weights()[i].elements);
  }
  // Where all formats are named there is nothing to choose.
  EXPECT_TRUE(select_formats(config, in_format(weights, {"dense"}), automatic()).empty());
  RandomWeights impossible = weights;
  impossible.planned.begin()->second.sparsity = std::nan("");
  EXPECT_TRUE(testing::throws_error([&] { select_formats(config, impossible, automatic()); },
                                    ": the sparsity of random weights is nan"));
  EXPECT_TRUE(testing::throws_error([&] { fit_memory(config, DType::f16, automatic()); },
                                    "the fastest formats of a model are those of its weights"));
}

// Where nothing may be measured the choice depends on the model alone: not on what memory is free.
TEST(FormatSelection, WithoutMeasurementsRulesChooseForAGpu) {
  const TempDir folder;
  const fs::path model = pruned(folder, 0.6, "tiled_csl");
  const Checkpoint checkpoint(model);
  EngineOptions options = automatic();
  options.device = kCuda;
  for (const bool deterministic : {false, true}) {
    options.deterministic = deterministic;
    options.tuning = deterministic ? Tuning::measured : Tuning::off;
    EXPECT_EQ(formats_of(select_formats(read_model_config(model), checkpoint, options)),
              Formats(4, "tca_bme"));
  }
  options.decode_tokens = {64, 100};  // of which rules say dense
  EXPECT_EQ(formats_of(select_formats(read_model_config(model), checkpoint, options)),
            Formats(4, "dense"));
}

// Layers of one kind whose stored sizes differ: their bytes are the sum of the stored ones.
TEST(FormatSelection, AKindTakesTheBytesOfItsLayers) {
  const TempDir folder;
  const fs::path model = folder.path() / "pruned";
  convert_model({.input = llama(),
                 .output = model,
                 .plan = SparsityPlan::read(folder.write("plan.json", R"({"rules": [
                     {"tensors": "*", "layers": [0, 3], "prune": "magnitude", "sparsity": 0.74}],
                     "default": {"prune": "magnitude", "sparsity": 0.7, "format": "tca_bme"}})"))});
  const ModelConfig config = read_model_config(model);
  const Checkpoint checkpoint(model);
  const WeightStore store(checkpoint);
  EngineOptions options = automatic();
  options.device = kCuda;
  const std::vector<FormatChoice> choices = select_formats(config, checkpoint, options);
  EXPECT_EQ(formats_of(choices), Formats(4, "tca_bme"));
  int64_t of_medians = 0;
  for (const FormatChoice& choice : choices) {
    EXPECT_EQ(choice.kind.count(), 8);
    of_medians += 8 * choice.bytes();
  }
  ShapeLoader shapes(kCuda, DType::f16, {.store = &store, .layers = layer_formats(choices)});
  const std::vector<FormatSum> sums = build_decoder(config, shapes)->linear_weights();
  ASSERT_EQ(sums.size(), 1u);
  EXPECT_EQ(total_bytes(choices), sums[0].bytes);
  EXPECT_NE(of_medians, sums[0].bytes);
}

// MLPs whose neurons are read one by one are dense, and no format is chosen for them.
TEST(FormatSelection, LeavesMlpsWithActivationSparsityDense) {
  ModelConfig config = read_model_config(llama());
  config.activation_sparsity.mode = ActivationSparsity::Mode::exact;
  int64_t dense = 0;
  for (const JoinedLinear& layer : joined_linear_layers(config)) {
    const bool of_mlp = layer.first_weight().find(".mlp.") != std::string::npos;
    EXPECT_EQ(layer.always_dense, of_mlp) << layer.first_weight();
    dense += of_mlp ? 1 : 0;
  }
  EXPECT_EQ(dense, 2 * config.num_layers);
  const TempDir folder;
  const fs::path model = pruned(folder, 0.6, "tca_bme");
  const Checkpoint checkpoint(model);
  for (const FormatChoice& choice : select_formats(config, checkpoint, automatic())) {
    const bool of_mlp = choice.kind.layer.always_dense;
    EXPECT_EQ(choice.in.format, of_mlp ? "dense" : "tca_bme");
    const std::string text = to_string(choice, FormatRules::built_in());
    EXPECT_EQ(text.find("for activation sparsity") != std::string::npos, of_mlp) << text;
  }
  const RandomWeights random{.sparsity = 0.6, .format = "auto"};
  for (const FormatChoice& choice : select_formats(config, random, automatic())) {
    EXPECT_TRUE(!choice.kind.layer.always_dense || choice.in.format == "dense");
  }
}

TEST(FormatSelection, RandomZerosHaveTheirPlaces) {
  const std::vector<JoinedLinear> layers = joined_linear_layers(read_model_config(llama()));
  const JoinedLinear& qkv = layers.front();
  ASSERT_EQ(qkv.parts.size(), 3u);
  constexpr ZeroPattern kRows{.kind = ZeroPattern::Kind::rows};
  const RandomWeights weights{
      .sparsity = 0.5,
      .planned = {{qkv.parts[1].module, {.sparsity = 0.5, .pattern = kRows}},
                  {qkv.parts[2].module, {.sparsity = 0.5, .pattern = kRows}}}};
  EXPECT_EQ(random_origin(weights).weight_of(qkv).zeros, "uniform rows:0");
  EXPECT_EQ(random_origin(weights).weight_of(layers[1]).zeros, "uniform");
  const Checkpoint checkpoint(llama());
  const WeightStore store(checkpoint);
  EXPECT_EQ(stored_origin(store, DType::f16, {}).weight_of(qkv).zeros, "");
}

// Formats of single layers: what the arena of dense tensors is sized for is what is then there.
TEST(FormatSelection, ALayersFormatIsTheLoadersAndTheShapes) {
  const TempDir folder;
  const fs::path model = pruned(folder, 0.6, "tca_bme");
  const ModelConfig config = read_model_config(model);
  const Checkpoint checkpoint(model);
  const WeightStore store(checkpoint);
  WeightEncoding encoding{.format = {}, .threads = 2};
  for (const JoinedLinear& layer : joined_linear_layers(config)) {
    if (layer.parts.front().block % 2 == 0) {
      encoding.layers.emplace(layer.first_weight(), LayerFormat{"dense"});
    }
  }
  CheckpointLoader weights(checkpoint, {}, {}, {}, encoding);
  ShapeLoader shapes({}, DType::f16, {.store = &store, .layers = encoding.layers});
  for (WeightLoader* loader :
       {static_cast<WeightLoader*>(&weights), static_cast<WeightLoader*>(&shapes)}) {
    const std::vector<FormatSum> sums = build_decoder(config, *loader)->linear_weights();
    ASSERT_EQ(sums.size(), 2u);
    EXPECT_EQ(sums[0].format, "dense");
    EXPECT_EQ(sums[1].format, "tca_bme");
    EXPECT_EQ(sums[0].elements, sums[1].elements);
  }
  EXPECT_EQ(weights.loaded_bytes(), shapes.loaded_bytes());
  encoding.layers.begin()->second.format = "csr";
  EXPECT_TRUE(testing::throws_error([&] { CheckpointLoader(checkpoint, {}, {}, {}, encoding); },
                                    "the weight format csr is not known"));
}

}  // namespace
}  // namespace sparsellm
