// Calibration of activation sparsity, from a text to the alphas in a config.json.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/calibrate_activation_sparsity.h"
#include "engine/calibration_sequences.h"
#include "engine/conversion/convert.h"
#include "engine/engine.h"
#include "engine/log_probability.h"
#include "engine/neuron_statistics.h"
#include "kernels/base/mapped_file.h"
#include "models/storage/safetensors.h"
#include "tests/models/storage/write_safetensors.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::TempDir;
using testing::TestTensor;
using testing::throws_error;
using Mode = ActivationSparsity::Mode;

constexpr int64_t kTokens = 600;

std::string text() {
  return read_text_file(testing::data("text/calibration.txt"), 1 << 24).substr(0, 3000);
}

// tiny/opt_gelu with ReLU, and perhaps a stored activation sparsity.
fs::path relu_model(const TempDir& folder, const ActivationSparsity& sparsity = {}) {
  const fs::path model = folder.path() / "opt_relu";
  fs::copy(testing::data("tiny/opt_gelu"), model);
  json config = json::parse(read_text_file(model / "config.json", 1 << 20));
  config["activation_function"] = "relu";
  if (sparsity.mode != Mode::off) {
    config["sparsellm"] = json::parse(to_json(sparsity));
  }
  std::ofstream(model / "config.json") << config;
  return model;
}

ActivationSparsity calibrate(const fs::path& model, double max_loss, int threads = 2) {
  return calibrate_activation_sparsity(
      OpenDirectory(model),
      {.text = text(), .tokens = kTokens, .max_loss = max_loss, .threads = threads});
}

// The mean negative log-likelihood of what calibration scores.
double loss_of(const fs::path& model, const ActivationSparsityRequest& request,
               NeuronObserver* observer = nullptr) {
  EngineOptions options;
  options.threads = 2;
  options.activation_sparsity = request;
  options.neuron_observer = observer;
  Engine engine = Engine::load(model, options);
  std::vector<Request> requests;
  double sum = 0.0;
  int64_t count = 0;
  for (const std::vector<int32_t>& ids : calibration_sequences(
           engine.tokenizer(), {.text = text(), .tokens = kTokens, .length = 144})) {
    Request each{.prompt = ids, .max_tokens = 0};
    each.on_logits = [&, ids](int64_t position, std::span<const float> logits) {
      if (position + 1 < std::ssize(ids)) {
        sum -= log_probability(logits, ids[static_cast<size_t>(position) + 1]);
        ++count;
      }
    };
    each.score_prompt = true;
    each.decode_from = 1;
    requests.push_back(std::move(each));
  }
  engine.generate(std::move(requests));
  return sum / static_cast<double>(count);
}

TEST(ActivationCalibration, StaysWithinTheLossAndMissesTheSameShareInAllLayers) {
  const TempDir folder;
  const fs::path model = relu_model(folder);
  NeuronStatistics statistics(2, Votes::weighted);
  const double exact = loss_of(model, {.mode = Mode::exact}, &statistics);
  double least = 0.0;
  for (const double max_loss : {0.02, 0.3}) {
    const ActivationSparsity found = calibrate(model, max_loss);
    ASSERT_EQ(found.mode, Mode::predict);
    EXPECT_EQ(found.votes, Votes::weighted);
    ASSERT_EQ(found.alphas.size(), 2u);
    EXPECT_LE(*found.perplexity_loss, max_loss);
    const double loss =
        std::expm1(loss_of(model, {.mode = Mode::predict, .alphas = found.alphas}) - exact);
    EXPECT_NEAR(*found.perplexity_loss, loss, 1e-6);
    EXPECT_GT(*found.skipped, least);
    least = *found.skipped;
    std::vector<double> missed;
    for (size_t layer = 0; layer < 2; ++layer) {
      missed.push_back(statistics.layers()[layer].votes.missed_share(*found.alphas[layer]));
    }
    EXPECT_NEAR(missed[0] / missed[1], 1.0, 0.05);
    EXPECT_EQ(calibrate(model, max_loss, 1), found);
  }
}

// A layer without an alpha is computed as in `exact`.
TEST(ActivationCalibration, SomeLayersMayPredictNothing) {
  const TempDir folder;
  const ActivationSparsity stored{.mode = Mode::predict, .alphas = {std::nullopt, 1.0f}};
  const fs::path model = relu_model(folder, stored);
  // Stored, and asked for; an alpha that skips nothing is the same.
  const double loss = loss_of(model, {});
  EXPECT_EQ(loss, loss_of(model, {.mode = Mode::predict, .alphas = stored.alphas}));
  EXPECT_EQ(loss, loss_of(model, {.mode = Mode::predict, .alphas = {1e30f, 1.0f}}));
  EXPECT_NE(loss, loss_of(model, {.mode = Mode::exact}));

  EngineOptions options;
  Engine engine = Engine::load(model, options);
  engine.generate({{.prompt = {5, 6, 7}, .max_tokens = 5, .ignore_eos = true}});
  ASSERT_EQ(engine.neuron_counts().size(), 2u);
  EXPECT_EQ(engine.neuron_counts()[0].skipped, 0);
  EXPECT_GT(engine.neuron_counts()[0].active, 0);
  EXPECT_GT(engine.neuron_counts()[1].skipped, 0);
}

// All x are positive and all weights negative, so that the votes are of one mind for any alpha,
// and wrong: biases make all neurons active.
TEST(ActivationCalibration, IsOffWhereNothingMayBeSkipped) {
  const TempDir folder;
  const fs::path model = relu_model(folder);
  std::vector<TestTensor> tensors;
  {
    const Checkpoint checkpoint(model);
    for (const std::string& name : checkpoint.names()) {
      const StoredTensor& stored = *checkpoint.find(name);
      std::vector<uint16_t> values(stored.bytes.size() / sizeof(uint16_t));
      std::memcpy(values.data(), stored.bytes.data(), stored.bytes.size());
      const auto set = [&](const char* part, uint16_t value) {
        if (name.find(part) != std::string::npos) {
          std::fill(values.begin(), values.end(), value);
        }
      };
      set("layers.0.final_layer_norm.weight", 0);
      set("layers.1.final_layer_norm.weight", 0);
      set("layers.0.final_layer_norm.bias", 0x3c00);  // 1
      set("layers.1.final_layer_norm.bias", 0x3c00);
      set("fc1.weight", 0x9c00);  // -2^-8
      set("fc1.bias", 0x4000);    // 2
      tensors.push_back({name, stored.dtype, stored.shape, testing::bytes_of(values)});
    }
  }
  folder.write("opt_relu/model.safetensors", testing::write_safetensors(tensors));
  EXPECT_EQ(calibrate(model, 0.5), ActivationSparsity());
}

TEST(ActivationCalibration, RefusesWhatCannotBe) {
  const TempDir folder;
  const fs::path model = relu_model(folder);
  for (const double max_loss : {0.0, 1.0, -0.1, std::nan("")}) {
    EXPECT_TRUE(throws_error([&] { calibrate(model, max_loss); }, "is not in (0, 1)"));
  }
  EXPECT_TRUE(throws_error([&] { calibrate(testing::data("tiny/llama3"), 0.1); },
                           "needs relu or fatrelu; the model has silu"));
  EXPECT_TRUE(throws_error(
      [&] {
        calibrate_activation_sparsity(OpenDirectory(model), {.text = "Once.", .tokens = kTokens});
      },
      "too few to calibrate activation sparsity; use at least 512"));
}

ConvertOptions conversion(const fs::path& input, const fs::path& output, const char* method) {
  return {.input = input,
          .output = output,
          .plan = SparsityPlan::uniform(
              {.method = parse_prune_method(method),
               .sparsity = std::string_view(method) == "magnitude" ? 0.5 : 0.0},
              "dense"),
          .threads = 2};
}

TEST(ActivationCalibration, IsStoredByAConversion) {
  const TempDir folder;
  const fs::path model = relu_model(folder);
  folder.write("text", text());
  ConvertOptions options = conversion(model, folder.path() / "out", "none");
  options.activation_sparsity = ActivationSparsitySearch{
      .calibration = {.file = folder.path() / "text", .tokens = kTokens}, .max_loss = 0.3};
  const Conversion done = convert_model(options);
  EXPECT_EQ(done.activation_sparsity, calibrate(model, 0.3));
  EXPECT_EQ(read_model_config(OpenDirectory(options.output)).activation_sparsity,
            done.activation_sparsity);

  // It stays with the weights, and goes with the weights that it was for.
  convert_model(conversion(options.output, folder.path() / "again", "none"));
  EXPECT_EQ(read_text_file(folder.path() / "again" / "config.json", 1 << 20),
            read_text_file(options.output / "config.json", 1 << 20));
  const fs::path pruned = folder.path() / "pruned";
  EXPECT_TRUE(convert_model(conversion(options.output, pruned, "magnitude")).dropped_alphas);
  EXPECT_EQ(json::parse(read_text_file(pruned / "config.json", 1 << 20)),
            json::parse(read_text_file(model / "config.json", 1 << 20)));

  options.plan = conversion(model, pruned, "magnitude").plan;
  options.output = folder.path() / "both";
  EXPECT_TRUE(throws_error([&] { convert_model(options); }, "prune first, and calibrate"));
  EXPECT_FALSE(fs::exists(options.output));
}

}  // namespace
}  // namespace sparsellm
