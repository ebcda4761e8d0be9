// Models with activation sparsity on a GPU: generated rows with and without it.

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "models/weights/random_weights.h"
#include "tests/engine/engine_gpu_fixture.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

using Mode = ActivationSparsity::Mode;
using Scores = std::map<int64_t, std::vector<float>>;  // logits by position

constexpr int64_t kText = 40;

struct SparseModel {
  std::string name;
  std::string config;
};

std::string llama(int hidden, int intermediate, const std::string& activation) {
  return R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": )" +
         std::to_string(hidden) + R"(, "intermediate_size": )" + std::to_string(intermediate) +
         R"(, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
 "head_dim": 64, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "vocab_size": 320,
 "tie_word_embeddings": true, "torch_dtype": "float16", )" +
         activation + "}";
}
std::string opt(int hidden, int intermediate) {
  return R"({"architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": )" +
         std::to_string(hidden) + R"(, "ffn_dim": )" + std::to_string(intermediate) +
         R"(, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 128,
 "word_embed_proj_dim": )" +
         std::to_string(hidden) + R"(, "activation_function": "relu", "vocab_size": 320,
 "do_layer_norm_before": true, "torch_dtype": "float16"})";
}

std::vector<SparseModel> sparse_models() {
  return {
      {"llama_relu", llama(256, 1000, R"("hidden_act": "relu")")},
      {"opt", opt(384, 1536)},
      {"llama_fatrelu", llama(200, 333, R"("hidden_act": "fatrelu", "hidden_act_param": 0.05)")},
      {"opt_odd", opt(160, 312)}};
}

std::ostream& operator<<(std::ostream& out, const SparseModel& model) { return out << model.name; }

class GpuActivationSparsity : public ::testing::TestWithParam<SparseModel> {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "there is no CUDA device";
    }
    folder_.write("config.json", GetParam().config);
  }

  Engine load(const ActivationSparsityRequest& request, bool deterministic = false,
              Device device = {Device::Kind::cuda, 0}) {
    return load(options_for(request, deterministic, device));
  }
  EngineOptions options_for(const ActivationSparsityRequest& request, bool deterministic = false,
                            Device device = {Device::Kind::cuda, 0}) const {
    EngineOptions options = testing::on_gpu();
    options.device = device;
    options.context_size = 64;
    options.kv_tokens = kv_tokens_;
    options.activation_sparsity = request;
    options.deterministic = deterministic;
    return options;
  }
  Engine load(const EngineOptions& options) {
    RandomWeights weights;
    weights.dtype = DType::f16;
    return Engine::load_random(folder_.path() / "config.json", weights, options);
  }

  // Of texts whose tokens from `decode_from` on count as generated, all at once.
  static std::vector<Scores> scores(Engine& engine, int64_t texts,
                                    std::optional<int64_t> decode_from, int64_t first_seed = 0) {
    std::vector<Scores> all(static_cast<size_t>(texts));
    std::vector<Request> requests(all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      std::mt19937 random(static_cast<unsigned>(first_seed) + static_cast<unsigned>(i));
      std::vector<int32_t> text(static_cast<size_t>(kText));
      for (int32_t& id : text) {
        id = static_cast<int32_t>(random() % 320);
      }
      requests[i] = {.prompt = text,
                     .sampling = {.temperature = 0.0f},
                     .max_tokens = 20,
                     .ignore_eos = true,
                     .score_prompt = true,
                     .decode_from = decode_from};
      requests[i].on_logits = [&logits = all[i]](int64_t position, std::span<const float> values) {
        logits.try_emplace(position, values.begin(), values.end());
      };
    }
    for (const Completion& done : engine.generate(std::move(requests))) {
      EXPECT_EQ(done.error, "");
    }
    return all;
  }

  struct Difference {
    double mean = 0.0;
    double worst = 0.0;
  };
  static Difference difference(const std::vector<Scores>& a, const std::vector<Scores>& b) {
    Difference result;
    double sum = 0.0;
    double count = 0.0;
    for (size_t i = 0; i < a.size(); ++i) {
      for (int64_t position = 0; position < kText; ++position) {
        const std::vector<float>& x = a[i].at(position);
        const std::vector<float>& y = b[i].at(position);
        for (size_t k = 0; k < x.size(); ++k) {
          const double d = std::abs(double{x[k]} - double{y[k]});
          EXPECT_TRUE(std::isfinite(d));
          sum += d;
          count += 1.0;
          result.worst = std::max(result.worst, d);
        }
      }
    }
    result.mean = sum / count;
    return result;
  }

  int64_t kv_tokens_ = 0;
  testing::TempDir folder_;
};

INSTANTIATE_TEST_SUITE_P(Gpu, GpuActivationSparsity, ::testing::ValuesIn(sparse_models()),
                         [](const auto& test) { return test.param.name; });

ActivationSparsityRequest predicted(float alpha) {
  return {.mode = Mode::predict, .alpha = ActivationSparsityRequest::Alpha{.value = alpha}};
}

// Few rows go by the neurons, many by dense products.
TEST_P(GpuActivationSparsity, OfNothingSkippedIsTheModel) {
  Engine off = load({.mode = Mode::off});
  EXPECT_EQ(load({.mode = Mode::exact}).stats().weight_bytes, off.stats().weight_bytes);
  EXPECT_GT(load(predicted(1.0f)).stats().weight_bytes, off.stats().weight_bytes);
  for (const int64_t texts : {1, 2, 8}) {
    const std::vector<Scores> expected = scores(off, texts, 1);
    for (const ActivationSparsityRequest& request :
         {ActivationSparsityRequest{.mode = Mode::exact}, predicted(1e6f)}) {
      Engine engine = load(request);
      const Difference found = difference(scores(engine, texts, 1), expected);
      EXPECT_LE(found.mean, 0.002);
      EXPECT_LE(found.worst, 0.1);
    }
  }
}

// Up to how many rows go by neurons is measured once, and kept. Each case has a cache of its own:
// `predict` and `exact` share dense products, and deterministic ones are all that `predict` tunes.
// All products are known before a graph is captured: none fails.
TEST_P(GpuActivationSparsity, IsTuned) {
  Engine off = load({.mode = Mode::off});
  const std::vector<Scores> expected = scores(off, 8, 1);
  for (const ActivationSparsityRequest& request :
       {ActivationSparsityRequest{.mode = Mode::exact}, predicted(1e6f)}) {
    for (const bool deterministic : {false, true}) {
      std::ostringstream text;
      spdlog::logger log("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text));
      EngineOptions options = options_for(request, deterministic);
      options.tuning = Tuning::measured;
      options.tune_cache = folder_.path() / fmt::format("{}_{}.json", name_of(*request.mode),
                                                        deterministic ? "invariant" : "fastest");
      options.log = &log;
      options.warm_up = true;
      EXPECT_GT(load(options).stats().tuned_choices, 0);
      Engine engine = load(options);
      EXPECT_EQ(engine.stats().tuned_choices, 0);
      EXPECT_EQ(text.str().find("could not be captured"), std::string::npos) << text.str();
      EXPECT_EQ(text.str().find("weights are skipped for up to") == std::string::npos,
                deterministic);
      const Difference found = difference(scores(engine, 8, 1), expected);
      EXPECT_LE(found.mean, 0.002);
      EXPECT_LE(found.worst, 0.1);
    }
  }
}

// The same neurons as on the CPU, but for some whose votes are nearly even.
TEST_P(GpuActivationSparsity, SkipsWhatTheCpuSkips) {
  Engine off = load({.mode = Mode::off}, false, {});
  Engine on_cpu = load(predicted(1.0f), false, {});
  Engine on_gpu = load(predicted(1.0f));
  for (const int64_t texts : {1, 8}) {
    const std::vector<Scores> expected = scores(on_cpu, texts, 1);
    const double of_skipping = difference(scores(off, texts, 1), expected).mean;
    const double of_device = difference(scores(on_gpu, texts, 1), expected).mean;
    EXPECT_GT(of_skipping, 0.0);
    EXPECT_LE(of_device, of_skipping / 3.0);
  }
}

// In few and in many rows, with and without padding.
TEST_P(GpuActivationSparsity, CountsWhatTheCpuCounts) {
  struct Case {
    ActivationSparsityRequest request;
    int64_t texts;
    bool deterministic = false;
  };
  const ActivationSparsityRequest exact{.mode = Mode::exact};
  for (const Case& c : {Case{exact, 1}, Case{exact, 3, true}, Case{predicted(1.0f), 1},
                        Case{predicted(1.0f), 3}, Case{predicted(1.0f), 7}}) {
    const bool predicts = c.request.mode == Mode::predict;
    SCOPED_TRACE(fmt::format("{} texts, {}", c.texts, name_of(*c.request.mode)));
    Engine on_cpu = load(c.request, false, {});
    Engine on_gpu = load(c.request, c.deterministic);
    scores(on_cpu, c.texts, 1);
    scores(on_gpu, c.texts, 1);
    const NeuronCounts expected = on_cpu.stats().neurons;
    const NeuronCounts counts = on_gpu.stats().neurons;
    EXPECT_EQ(counts.rows, expected.rows);
    EXPECT_EQ(counts.neurons, expected.neurons);
    EXPECT_NEAR(counts.active_share(), expected.active_share(), 0.01);
    EXPECT_NEAR(counts.skipped_share(), expected.skipped_share(), 0.01);
    EXPECT_EQ(counts.skipped > 0, predicts);
    const std::vector<NeuronCounts> layers = on_gpu.neuron_counts();
    ASSERT_EQ(layers.size(), 2u);
    EXPECT_EQ(layers[0].rows, layers[1].rows);
    EXPECT_EQ(layers[0].active + layers[1].active, counts.active);
  }
  // Above the cut-off `exact` is dense, and nothing is counted; nor in what is only padding.
  Engine engine = load(exact);
  scores(engine, 8, 1);
  EXPECT_LT(engine.stats().neurons.rows, 8 * (kText + 20));
  EngineOptions options = options_for(predicted(1.0f));
  options.warm_up = true;
  EXPECT_EQ(load(options).stats().neurons.rows, 0);
}

// Layers without an alpha predict nothing: they are exact.
TEST_P(GpuActivationSparsity, LayersMayPredictNothing) {
  Engine off = load({.mode = Mode::off});
  for (const int64_t texts : {1, 8}) {
    const std::vector<Scores> expected = scores(off, texts, 1);
    const std::vector<std::optional<float>> alphas[] = {{std::nullopt, 1e6f}, {1e6f, std::nullopt}};
    for (const std::vector<std::optional<float>>& some : alphas) {
      Engine engine = load({.mode = Mode::predict, .alphas = some});
      const Difference found = difference(scores(engine, texts, 1), expected);
      EXPECT_LE(found.mean, 0.002);
      EXPECT_LE(found.worst, 0.1);
    }
  }
  const ActivationSparsityRequest one{.mode = Mode::predict, .alphas = {std::nullopt, 1.0f}};
  Engine on_cpu = load(one, false, {});
  Engine on_gpu = load(one);
  const std::vector<Scores> expected = scores(on_cpu, 8, 1);
  const double of_skipping = difference(scores(off, 8, 1), expected).mean;
  const double of_device = difference(scores(on_gpu, 8, 1), expected).mean;
  EXPECT_GT(of_skipping, 0.0);
  EXPECT_LE(of_device, of_skipping / 3.0);
  EXPECT_EQ(on_gpu.neuron_counts()[0].skipped, 0);
  EXPECT_GT(on_gpu.neuron_counts()[1].skipped, 0);
}

// Prompts are dense: as with `off`.
TEST_P(GpuActivationSparsity, LeavesPromptsAlone) {
  Engine off = load({.mode = Mode::off}, true);
  Engine sparse = load(predicted(1.0f), true);
  const Difference found = difference(scores(sparse, 1, {}), scores(off, 1, {}));
  EXPECT_LE(found.mean, 0.002);
}

TEST_P(GpuActivationSparsity, IsDeterministicInAnyCompany) {
  for (const ActivationSparsityRequest& request :
       {ActivationSparsityRequest{.mode = Mode::exact}, predicted(1.0f)}) {
    kv_tokens_ = 0;
    Engine engine = load(request, true);
    const std::vector<Scores> together = scores(engine, 6, 7);
    for (int64_t i = 0; i < 6; ++i) {
      EXPECT_TRUE(scores(engine, 1, 7, i).front() == together[static_cast<size_t>(i)]);
    }
    kv_tokens_ = 112;  // not enough for six
    Engine small = load(request, true);
    EXPECT_TRUE(scores(small, 6, 7) == together);
    EXPECT_GT(small.stats().preemptions, 0);
  }
}

// Generated rows that are computed again, beside prompts, lose the same neurons.
TEST_P(GpuActivationSparsity, SkipsTheSameWhenComputedAgain) {
  Engine off = load({.mode = Mode::off});
  Engine engine = load(predicted(1.0f));
  const std::vector<Scores> expected = scores(engine, 6, 7);
  const double of_skipping = difference(scores(off, 6, 7), expected).mean;
  kv_tokens_ = 112;  // not enough for six
  Engine small = load(predicted(1.0f));
  const double of_order = difference(scores(small, 6, 7), expected).mean;
  EXPECT_GT(small.stats().preemptions, 0);
  EXPECT_GT(of_skipping, 0.0);
  EXPECT_LE(of_order, of_skipping / 3.0);
}

}  // namespace
}  // namespace sparsellm
