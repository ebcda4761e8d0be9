// Tensors of published checkpoints that the models of this engine do not have.

#include "models/foreign_tensors.h"

#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "engine/conversion/convert.h"
#include "engine/engine.h"
#include "tests/engine/changed_model.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::data;
using testing::TempDir;
using testing::throws_error;

const std::vector<std::string> kPredictors{
    "model.layers.0.mlp.predictor.fc1.weight", "model.layers.0.mlp.predictor.fc2.weight",
    "model.layers.1.mlp.predictor.fc1.weight", "model.layers.1.mlp.predictor.fc2.weight"};

// The tokens that follow some prompt, and what was logged as a warning.
struct Generated {
  std::vector<int32_t> ids;
  std::string warnings;
};

Generated generate(const fs::path& model) {
  std::ostringstream text;
  spdlog::logger log("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text));
  log.set_pattern("%v");
  log.set_level(spdlog::level::warn);
  EngineOptions options;
  options.device = {};
  options.with_tokenizer = false;
  options.log = &log;
  Engine engine = Engine::load(model, options);
  Request request;
  request.prompt = {5, 17, 2};
  request.max_tokens = 8;
  const Completion result = engine.generate({request}).front();
  EXPECT_EQ(result.error, "");
  return {result.tokens, text.str()};
}

ConvertOptions conversion(const fs::path& from, const fs::path& to) {
  ConvertOptions options;
  options.input = from;
  options.output = to;
  options.with_tokenizer = false;
  return options;
}

TEST(ForeignTensors, PredictorsOfBambooAreLeftOut) {
  const TempDir folder;
  const fs::path model =
      testing::model_with_tensors(folder, data("tiny/bamboo"), kPredictors, 4, 8);
  const Generated plain = generate(data("tiny/bamboo"));
  const Generated with_predictors = generate(model);
  EXPECT_EQ(plain.warnings, "");
  EXPECT_EQ(with_predictors.ids, plain.ids);
  EXPECT_EQ(with_predictors.warnings,
            "the checkpoint's own predictors of zero neurons are left out (4 tensors, such as "
            "\"model.layers.0.mlp.predictor.fc1.weight\"): signs predict them here "
            "(--activation-sparsity)\n");

  const ConvertOptions options = conversion(model, folder.path() / "converted");
  EXPECT_EQ(inspect_model(options).front().conversion.left_out, kPredictors);
  EXPECT_EQ(convert_model(options).left_out, kPredictors);
  const Generated converted = generate(options.output);
  EXPECT_EQ(converted.ids, plain.ids);
  EXPECT_EQ(converted.warnings, "");
}

TEST(ForeignTensors, OtherArchitecturesHaveNone) {
  const TempDir folder;
  const fs::path model =
      testing::model_with_tensors(folder, data("tiny/llama_gelu_tanh"), kPredictors, 4, 8);
  EXPECT_TRUE(throws_error([&] { generate(model); },
                           "\"model.layers.0.mlp.predictor.fc1.weight\", which its config does not "
                           "ask for"));
}

TEST(ForeignTensors, JoinedProjectionsAreRefused) {
  for (const std::string name : {"self_attn.qkv_proj", "mlp.gate_up_proj"}) {
    const TempDir folder;
    const std::vector<std::string> joined{"model.layers.1." + name + ".weight"};
    const fs::path model =
        testing::model_with_tensors(folder, data("tiny/llama_gelu_tanh"), joined, 4, 8);
    const std::string message = "\"" + joined.front() + "\" has several projections in one";
    EXPECT_TRUE(throws_error([&] { generate(model); }, message));
    const fs::path output = folder.path() / "converted";
    EXPECT_TRUE(throws_error([&] { convert_model(conversion(model, output)); }, message));
    EXPECT_FALSE(fs::exists(output));
  }
}

}  // namespace
}  // namespace sparsellm
