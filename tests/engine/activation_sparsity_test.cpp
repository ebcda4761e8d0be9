// Models with activation sparsity, from a checkpoint to the logits of a request.

#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/conversion/convert.h"
#include "engine/engine.h"
#include "engine/memory_fit.h"
#include "kernels/base/mapped_file.h"
#include "models/random_plan.h"
#include "models/storage/safetensors.h"
#include "models/weights/checkpoint_loader.h"
#include "models/weights/random_weights.h"
#include "sparse/registry.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::TempDir;
using testing::throws_error;
using Mode = ActivationSparsity::Mode;
using Logits = std::map<int64_t, std::vector<uint32_t>>;  // by position, bit for bit

constexpr int64_t kPrompt = 21;

// A copy of a model with another value of a key in its config.json, and perhaps one more key.
fs::path changed(const TempDir& folder, const fs::path& model, const std::string& from,
                 const std::string& to, const std::string& more = "") {
  fs::path copy = folder.path() / model.filename();
  fs::remove_all(copy);
  fs::copy(model, copy);
  std::string config = read_text_file(model / "config.json", 1 << 20);
  const size_t at = config.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  config.replace(at, from.size(), to);
  config.insert(config.find('{') + 1, more);
  folder.write(copy.lexically_relative(folder.path()) / "config.json", config);
  return copy;
}

fs::path stored(const TempDir& folder, const fs::path& model, const ActivationSparsity& sparsity) {
  return changed(folder, model, "{", "{", "\"sparsellm\": " + to_json(sparsity) + ",");
}

// Gated with FATReLU, gated with biases everywhere, plain with biases, gated with a ReLU on either
// side, and with factors of what blocks add.
std::vector<fs::path> models(const TempDir& folder) {
  return {testing::data("tiny/llama_fatrelu"),
          changed(folder, testing::data("tiny/llama_bias"), R"("hidden_act": "gelu")",
                  R"("hidden_act": "relu")"),
          changed(folder, testing::data("tiny/opt_gelu"), R"("activation_function": "gelu")",
                  R"("activation_function": "relu")"),
          testing::data("tiny/bamboo"), testing::data("tiny/minicpm")};
}

EngineOptions options_of(ActivationSparsityRequest request) {
  EngineOptions options;
  options.activation_sparsity = request;
  options.with_tokenizer = false;
  options.threads = 2;
  options.max_requests = 6;
  options.context_size = 96;
  return options;
}

constexpr ActivationSparsityRequest predict(float alpha, Votes votes = Votes::weighted) {
  return {.mode = Mode::predict,
          .votes = votes,
          .alpha = ActivationSparsityRequest::Alpha{.value = alpha}};
}

std::vector<int32_t> random_ids(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) {
    id = static_cast<int32_t>(random() % 90);
  }
  return ids;
}

struct Result {
  std::vector<int32_t> tokens;
  Logits logits;

  friend bool operator==(const Result&, const Result&) = default;
};

// Of requests that run together.
std::vector<Result> run(Engine& engine, std::vector<Request> requests) {
  std::vector<Result> results(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].on_logits = [&result = results[i]](int64_t position,
                                                   std::span<const float> logits) {
      std::transform(logits.begin(), logits.end(), std::back_inserter(result.logits[position]),
                     [](float logit) { return std::bit_cast<uint32_t>(logit); });
    };
  }
  const std::vector<Completion> done = engine.generate(std::move(requests));
  for (size_t i = 0; i < done.size(); ++i) {
    EXPECT_EQ(done[i].error, "");
    results[i].tokens = done[i].tokens;
  }
  return results;
}

std::vector<Request> crowd(int64_t count = 6, int64_t max_tokens = 30) {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < count; ++i) {
    requests.push_back({.prompt = random_ids(kPrompt, i),
                        .sampling = {.temperature = 0.0f},
                        .max_tokens = max_tokens,
                        .ignore_eos = true});
  }
  return requests;
}

std::vector<Result> run(const fs::path& model, const EngineOptions& options) {
  Engine engine = Engine::load(model, options);
  return run(engine, crowd());
}

// Where the KV cache has no room for a crowd, and passes have rows of both kinds.
EngineOptions crowded(EngineOptions options) {
  options.step_tokens = 9;
  options.kv_tokens = 128;
  return options;
}

TEST(ActivationSparsity, ExactHasTheBitsOfOff) {
  const TempDir folder;
  for (const fs::path& model : models(folder)) {
    SCOPED_TRACE(model);
    const std::vector<Result> expected = run(model, options_of({.mode = Mode::off}));
    const EngineOptions options = options_of({.mode = Mode::exact});
    Engine engine = Engine::load(model, options);
    EXPECT_TRUE(run(engine, crowd()) == expected);
    const EngineStats& stats = engine.stats();
    EXPECT_EQ(stats.neurons.rows, 2 * 6 * 29);  // of two layers; the last token is not computed
    EXPECT_EQ(stats.neurons.skipped, 0);
    EXPECT_GT(stats.neurons.active_share(), 0.1);
    EXPECT_LT(stats.neurons.active_share(), 0.9);

    Engine small = Engine::load(model, crowded(options));
    EXPECT_TRUE(run(small, crowd()) == expected);
    EXPECT_GT(small.stats().preemptions, 0);

    Request samples = crowd(1).front();
    samples.samples = 3;
    for (const Completion& done : engine.generate({samples})) {
      EXPECT_EQ(done.tokens, expected.front().tokens);
    }
  }
}

TEST(ActivationSparsity, PredictThatKeepsAllHasTheBitsOfOff) {
  const TempDir folder;
  for (const fs::path& model : models(folder)) {
    SCOPED_TRACE(model);
    const std::vector<Result> expected = run(model, options_of({.mode = Mode::off}));
    for (const Votes votes : {Votes::sign, Votes::weighted}) {
      Engine engine = Engine::load(model, options_of(predict(1e30f, votes)));
      EXPECT_TRUE(run(engine, crowd()) == expected);
      EXPECT_EQ(engine.stats().neurons.skipped, 0);
    }
  }
}

TEST(ActivationSparsity, PredictHasTheSameBitsInAnyCompanyAndAfterPreemption) {
  const TempDir folder;
  for (const fs::path& model : models(folder)) {
    SCOPED_TRACE(model);
    for (const Votes votes : {Votes::sign, Votes::weighted}) {
      const EngineOptions options = options_of(predict(1.1f, votes));
      Engine engine = Engine::load(model, options);
      const std::vector<Result> expected = run(engine, crowd());
      EXPECT_FALSE(expected == run(model, options_of({.mode = Mode::off})));
      EXPECT_GT(engine.stats().neurons.skipped_share(), 0.1);
      EXPECT_LT(engine.stats().neurons.skipped_share(), 0.9);
      std::vector<Request> requests = crowd();
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_TRUE(run(engine, {requests[i]}).front() == expected[i]) << i;
      }
      Engine small = Engine::load(model, crowded(options));
      EXPECT_TRUE(run(small, crowd()) == expected);
      EXPECT_GT(small.stats().preemptions, 0);

      // What was generated, given as text.
      for (size_t i = 0; i < 2; ++i) {
        Request text = requests[i];
        text.prompt.insert(text.prompt.end(), expected[i].tokens.begin(),
                           expected[i].tokens.end() - 1);
        text.max_tokens = 0;
        text.score_prompt = true;
        text.decode_from = kPrompt;
        Logits forced = run(small, {text}).front().logits;
        std::erase_if(forced, [](const auto& row) { return row.first + 1 < kPrompt; });
        EXPECT_TRUE(forced == expected[i].logits) << i;
        text.decode_from.reset();
        const Logits prompt = run(engine, {text}).front().logits;
        EXPECT_TRUE(prompt.at(kPrompt - 1) == forced.at(kPrompt - 1));
        EXPECT_FALSE(prompt.rbegin()->second == forced.rbegin()->second);
      }
    }
  }
}

TEST(ActivationSparsity, AlphaIsThatOfTheFirstLayers) {
  ActivationSparsityRequest request = predict(0.9f);
  request.alpha->layers = 1;
  Engine engine = Engine::load(testing::data("models/fable-opt-8m"), options_of(request));
  Engine ones = Engine::load(testing::data("models/fable-opt-8m"), options_of(predict(1.0f)));
  for (Engine* each : {&engine, &ones}) {
    run(*each, crowd(2, 5));
  }
  ASSERT_EQ(engine.neuron_counts().size(), 8u);
  EXPECT_GT(engine.neuron_counts()[0].skipped_share(), ones.neuron_counts()[0].skipped_share());
  EXPECT_EQ(engine.config().activation_sparsity.alphas,
            (std::vector<std::optional<float>>{0.9f, 1, 1, 1, 1, 1, 1, 1}));
}

// What a model has stored is what it runs with, unless something else is asked for.
TEST(ActivationSparsity, IsThatOfTheModel) {
  const TempDir folder;
  const ActivationSparsity sparsity{.mode = Mode::predict,
                                    .votes = Votes::sign,
                                    .alphas = {1.0f, 1.1f},
                                    .skipped = 0.25f,
                                    .perplexity_loss = 0.004f};
  const fs::path plain = testing::data("tiny/llama_fatrelu");
  const fs::path model = stored(folder, plain, sparsity);
  std::ostringstream text;
  spdlog::logger log("test", std::make_shared<spdlog::sinks::ostream_sink_st>(text));
  EngineOptions options = options_of({});
  options.log = &log;
  Engine engine = Engine::load(model, options);
  EXPECT_EQ(engine.config().activation_sparsity, sparsity);
  EXPECT_NE(text.str().find("activation sparsity: predict by sign votes, alpha 1 to 1.1; when "
                            "calibrated, 25.0 % of the neurons were skipped and the perplexity "
                            "changed by +0.40 %"),
            std::string::npos)
      << text.str();
  run(engine, crowd(1, 5));
  EXPECT_GT(engine.stats().neurons.skipped, 0);

  text.str("");
  options.activation_sparsity.mode = Mode::off;
  EXPECT_TRUE(run(model, options) == run(plain, options_of({})));
  EXPECT_EQ(text.str().find("activation sparsity"), std::string::npos) << text.str();

  EXPECT_TRUE(throws_error([&] { Engine::load(plain, options_of({.mode = Mode::predict})); },
                           "sparsellm-convert --activation-sparsity predict --calibration FILE"));
  EXPECT_TRUE(throws_error(
      [] { Engine::load(testing::data("tiny/llama3"), options_of({.mode = Mode::exact})); },
      "needs relu or fatrelu; the model has silu"));
}

// MLPs become dense whatever they are stored as, and the log says what that costs.
TEST(ActivationSparsity, OfSparseWeights) {
  const TempDir folder;
  for (const char* model : {"models/fable-llama-relu-8m", "models/fable-opt-8m"}) {
    const fs::path converted = folder.path() / fs::path(model).filename();
    convert_model({.input = testing::data(model),
                   .output = converted,
                   .plan = SparsityPlan::uniform(
                       {.method = parse_prune_method("magnitude"), .sparsity = 0.5}, "tca_bme")});
    // Products of sparse formats have the same bits among themselves, and others than dense ones.
    EngineOptions dense = options_of({});
    dense.weight_format = "dense";
    const std::vector<Result> of_dense = run(converted, dense);
    const std::vector<Result> of_sparse = run(converted, options_of({.mode = Mode::exact}));
    const Checkpoint checkpoint(converted);
    const WeightStore store(checkpoint);
    for (const std::string format : {"dense", "", "tiled_csl", "auto"}) {
      SCOPED_TRACE(fmt::format("{} as {}", model, format));
      std::ostringstream text;
      spdlog::logger log("test", std::make_shared<spdlog::sinks::ostream_sink_st>(text));
      EngineOptions options = options_of({.mode = Mode::exact});
      options.weight_format = format;
      options.log = &log;
      Engine engine = Engine::load(converted, options);
      const std::vector<Result>& expected = format == "dense" ? of_dense : of_sparse;
      EXPECT_TRUE(run(engine, crowd()) == expected);
      EXPECT_NE(text.str().find("MLPs that are stored in a sparse format are dense here"),
                std::string::npos)
          << text.str();
      const std::vector<FormatSum> sums = engine.linear_weights();
      ASSERT_EQ(sums.size(), format == "dense" ? 1u : 2u);  // attention keeps its format
      EXPECT_EQ(sums[0].format, "dense");
      options.activation_sparsity = predict(1e30f);
      const MemoryFit fit =
          fit_memory(read_model_config(converted), DType::f16, options, {.store = &store});
      Engine keeps_all = Engine::load(converted, options);
      EXPECT_TRUE(run(keeps_all, crowd()) == expected);
      EXPECT_EQ(fit.step, keeps_all.stats().workspace_bytes);
      // Joined encodings of attention come to some bytes less, and panels to some more.
      EXPECT_NEAR(static_cast<double>(fit.weights),
                  static_cast<double>(keeps_all.stats().weight_bytes), 2e4);
    }
  }
}

TEST(ActivationSparsity, FitsTheMemoryThatIsForetold) {
  const TempDir folder;
  std::vector<fs::path> all = models(folder);
  all.push_back(testing::data("models/fable-llama-relu-8m"));
  all.push_back(testing::data("models/fable-opt-8m"));
  for (const fs::path& model : all) {
    SCOPED_TRACE(model);
    const Checkpoint checkpoint(model);
    const WeightStore store(checkpoint);
    const DType dtype = weight_dtype(checkpoint, {}, {});
    int64_t dense_bytes = 0;
    for (const ActivationSparsityRequest& request :
         {ActivationSparsityRequest{.mode = Mode::off},
          ActivationSparsityRequest{.mode = Mode::exact}, predict(1.0f)}) {
      EngineOptions options = options_of(request);
      const MemoryFit fit = fit_memory(read_model_config(model), dtype, options, {.store = &store});
      const Engine engine = Engine::load(model, options);
      EXPECT_EQ(fit.step, engine.stats().workspace_bytes);
      if (request.mode != Mode::predict) {
        EXPECT_EQ(fit.weights, engine.stats().weight_bytes);
      } else {  // whose sign words take half if no element is zero
        EXPECT_GE(fit.weights, engine.stats().weight_bytes);
        EXPECT_LE(fit.weights - dense_bytes, 2 * (engine.stats().weight_bytes - dense_bytes));
      }
      if (request.mode == Mode::off) {
        dense_bytes = fit.weights;
      } else if (request.mode == Mode::exact) {
        EXPECT_EQ(fit.weights, dense_bytes);
      } else {
        EXPECT_GT(fit.weights, dense_bytes);  // by the sign words
        EXPECT_LT(fit.weights, dense_bytes + dense_bytes / 16);
      }
    }
  }
}

TEST(ActivationSparsity, OfRandomWeights) {
  const fs::path config = testing::data("tiny/llama_fatrelu/config.json");
  for (const std::string format : {"", "auto"}) {
    const RandomWeights weights{.sparsity = 0.3, .seed = 3, .format = format};
    EngineOptions options = options_of({});
    options.weight_format = format;
    Engine off = Engine::load_random(config, weights, options);
    const std::vector<Result> expected = run(off, crowd());
    for (const ActivationSparsityRequest& request :
         {ActivationSparsityRequest{.mode = Mode::exact}, predict(1e30f)}) {
      options.activation_sparsity = request;
      Engine engine = Engine::load_random(config, weights, options);
      EXPECT_TRUE(run(engine, crowd()) == expected);
      EXPECT_GT(engine.stats().neurons.rows, 0);
      EXPECT_EQ(
          fit_memory(read_model_config_file(config), weights.dtype, options, {.random = weights})
              .weights,
          engine.stats().weight_bytes);
    }
  }
}

// Calibration for pruning and conversions compute densely what a model has stored.
TEST(ActivationSparsity, DoesNotKeepAModelFromBeingConverted) {
  const TempDir folder;
  const fs::path model =
      stored(folder, testing::data("models/fable-opt-8m"), {.mode = Mode::exact});
  const fs::path output = folder.path() / "out";
  convert_model({.input = model,
                 .output = output,
                 .plan = SparsityPlan::uniform(
                     {.method = parse_prune_method("wanda"), .sparsity = 0.5}, "tca_bme"),
                 .calibration = CalibrationFile{.file = testing::data("text/calibration.txt"),
                                                .tokens = 128}});
  EXPECT_EQ(read_model_config(output).activation_sparsity.mode, Mode::exact);
}

}  // namespace
}  // namespace sparsellm
