// The checkpoints with reference values on a GPU.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <random>
#include <sstream>

#include "engine/conversion/convert.h"
#include "engine/engine.h"
#include "engine/memory_fit.h"
#include "kernels/paged_kv.h"
#include "models/random_plan.h"
#include "models/weights/random_weights.h"
#include "tests/engine/engine_gpu_fixture.h"
#include "tests/engine/infinite_logits.h"
#include "tests/engine/soak.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/paths.h"
#include "tests/testing/reference.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"
#include "tools/eval/perplexity.h"

namespace sparsellm {
namespace {

using testing::expect_near_host;
using testing::expect_same;
using testing::GpuEngine;
using testing::on_gpu;
using testing::requests_of;

constexpr double kTolerance = 0.02;

INSTANTIATE_TEST_SUITE_P(Checkpoints, GpuEngine, ::testing::ValuesIn(testing::all_checkpoints()),
                         testing::checkpoint_name);

// Logits and tokens of the reference, teacher-forced: its continuation is scored as a prompt.
void expect_reference(Engine& engine, const std::filesystem::path& directory, double tolerance) {
  for (const testing::Reference::Greedy& greedy : testing::read_reference(directory).greedy) {
    Request request;
    request.prompt = greedy.ids;
    request.prompt.insert(request.prompt.end(), greedy.output_ids.begin(), greedy.output_ids.end());
    request.max_tokens = 0;
    request.score_prompt = true;
    request.on_logits = [&](int64_t position, std::span<const float> logits) {
      const int64_t next = position + 1 - std::ssize(greedy.ids);
      if (next == 0) {
        for (size_t i = 0; i < greedy.top5_ids.size(); ++i) {
          EXPECT_NEAR(logits[static_cast<size_t>(greedy.top5_ids[i])], greedy.top5_logits[i],
                      tolerance);
        }
      }
      if (next >= 0 && next < std::ssize(greedy.output_ids)) {
        const float most = *std::max_element(logits.begin(), logits.end());
        const int32_t id = greedy.output_ids[static_cast<size_t>(next)];
        EXPECT_GE(logits[static_cast<size_t>(id)], most - tolerance) << "token " << next;
      }
    };
    EXPECT_EQ(engine.generate({request}).front().error, "");
  }
}

TEST_P(GpuEngine, ReferenceInF16) {
  EngineOptions options = on_gpu();
  options.dtype = DType::f16;
  Engine engine = Engine::load(GetParam(), options);
  expect_reference(engine, GetParam(), kTolerance);
}

// bf16 has three bits less than f16: the same bound times eight.
TEST_P(GpuEngine, ReferenceInBf16) {
  EngineOptions options = on_gpu();
  options.dtype = DType::bf16;
  Engine engine = Engine::load(GetParam(), options);
  expect_reference(engine, GetParam(), 8.0 * kTolerance);
}

TEST_P(GpuEngine, ReferenceWhenDeterministic) {
  EngineOptions options = on_gpu();
  options.dtype = DType::f16;
  options.deterministic = true;
  Engine engine = Engine::load(GetParam(), options);
  expect_reference(engine, GetParam(), kTolerance);
}

TEST_P(GpuEngine, Perplexity) {
  const testing::Reference reference = testing::read_reference(GetParam());
  if (!reference.perplexity) {
    GTEST_SKIP() << "no perplexity in reference.json";
  }
  EngineOptions options = on_gpu();
  options.with_tokenizer = true;
  std::optional<Engine> loaded;
  try {
    loaded.emplace(Engine::load(GetParam(), options));
  } catch (const Error& error) {
    if (std::string(error.what()).find("no PCRE2") == std::string::npos) {
      throw;
    }
    GTEST_SKIP() << error.what();
  }
  Engine& engine = *loaded;
  std::ifstream file(testing::data("text/peter_pan.txt"));
  std::stringstream text;
  text << file.rdbuf();
  const Perplexity result = measure_perplexity(engine, text.str(), 512, PerplexityProtocol::windows,
                                               [](int64_t, int64_t) {});
  EXPECT_NEAR(result.perplexity, *reference.perplexity, 0.001 * *reference.perplexity);
  std::printf("perplexity %.4f, reference %.4f, %.0f tokens/s\n", result.perplexity,
              *reference.perplexity, static_cast<double>(result.tokens) / result.seconds);
}

// Alone or together, with steps ahead or not, in small chunks, with preemptions: the same bits.
TEST_P(GpuEngine, DeterministicInAnyCompany) {
  for (DType dtype : {DType::f16, DType::bf16}) {
    EngineOptions options = on_gpu();
    options.dtype = dtype;
    options.deterministic = true;
    options.context_size = 140;
    Engine engine = Engine::load(GetParam(), options);
    const std::vector<Request> requests = requests_of(engine, 17);
    std::vector<Completion> alone;
    for (const Request& request : requests) {
      alone.push_back(engine.generate({request}).front());
      EXPECT_EQ(alone.back().error, "");
    }
    struct Setting {
      int64_t max_requests;
      int64_t step_tokens;
      int64_t kv_tokens;
      int steps_ahead;
    };
    for (const Setting& setting : {Setting{17, 2048, 0, 1}, Setting{17, 2048, 0, 0},
                                   Setting{5, 33, 0, 1}, Setting{17, 64, 400, 1}}) {
      options.max_requests = setting.max_requests;
      options.step_tokens = setting.step_tokens;
      options.kv_tokens = setting.kv_tokens;
      options.steps_ahead = setting.steps_ahead;
      Engine crowded = Engine::load(GetParam(), options);
      const std::vector<Completion> together = crowded.generate(requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        SCOPED_TRACE(i);
        expect_same(together[i], alone[i]);
      }
      // With a window of half a page a sequence gives one back for each that it takes.
      EXPECT_EQ(crowded.stats().preemptions > 0,
                setting.kv_tokens > 0 && engine.config().window == 0);
      EXPECT_EQ(crowded.free_pages(), crowded.total_pages());
    }
  }
}

// What is promised without loading anything is what an engine then has.
TEST_P(GpuEngine, TakesTheMemoryOfTheFit) {
  for (DType dtype : {DType::f16, DType::bf16}) {
    EngineOptions options = on_gpu();
    options.dtype = dtype;
    options.step_tokens = 100;
    options.context_size = 140;
    const MemoryFit fit = fit_memory(read_model_config(GetParam()), dtype, options);
    EXPECT_EQ(fit.dtype, dtype);
    EXPECT_GE(fit.requests_of(140), options.max_requests);
    const Engine engine = Engine::load(GetParam(), options);
    EXPECT_EQ(fit.weights, engine.stats().weight_bytes);
    EXPECT_EQ(fit.step, engine.stats().workspace_bytes);
    EXPECT_EQ(engine.total_pages() * kPageSize * fit.kv_per_token, engine.stats().kv_bytes);
  }
}

// Steps take no memory: all of it is there before the first, except for the graphs of the first
// pass of each size.
TEST_P(GpuEngine, StepsTakeNoMemory) {
  EngineOptions options = on_gpu();
  options.context_size = 140;
  Engine engine = Engine::load(GetParam(), options);
  const std::vector<Request> requests = requests_of(engine, 17);
  engine.generate(requests);
  const int64_t peak = peak_memory(testing::kGpu);
  const int64_t free = device_memory(testing::kGpu).free;
  engine.generate(requests);
  EXPECT_EQ(peak_memory(testing::kGpu), peak);
  EXPECT_EQ(device_memory(testing::kGpu).free, free);
}

// One wait a step: for its tokens.
TEST_P(GpuEngine, OneWaitAStep) {
  EngineOptions options = on_gpu();
  options.context_size = 140;
  Engine engine = Engine::load(GetParam(), options);
  const std::vector<Request> requests = requests_of(engine, 10);  // of every kind
  engine.generate(requests);
  const EngineStats before = engine.stats();
  engine.generate(requests);
  EXPECT_EQ(engine.stats().waits - before.waits, engine.stats().steps - before.steps);
}

// Greedy and sampled, with each penalty, a bias and the log-probabilities of all tokens of a long
// prompt, in chunks: what the host computes of the same logits. Together, with steps ahead and
// without, as graphs and in buckets that differ, they get what each gets alone.
TEST_P(GpuEngine, AdjustsLogitsAndTellsLogProbabilitiesAsTheHostDoes) {
  EngineOptions options = on_gpu();
  options.deterministic = true;
  options.step_tokens = 64;
  Engine engine = Engine::load(GetParam(), options);
  constexpr int64_t kTokens = 24;
  const int64_t longest = std::min(int64_t{280}, engine.context_size() - kTokens);
  std::mt19937 random(11);
  const int64_t vocabulary = engine.config().vocab_size;
  std::vector<Request> requests;
  for (int kind = 0; kind < 24; ++kind) {
    Request request;
    const int64_t length = kind % 6 == 0 ? longest : 1 + static_cast<int64_t>(random() % 40);
    for (int64_t i = 0; i < length; ++i) {
      request.prompt.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary)));
    }
    request.max_tokens = kind == 6 ? 0 : kTokens;
    request.seed = static_cast<uint64_t>(kind);
    request.ignore_eos = kind % 2 == 0;
    SamplingParams& sampling = request.sampling;
    sampling.temperature = kind % 3 == 0 ? 0.0f : 0.8f;
    sampling.top_k = kind % 5 == 0 ? 30 : 0;
    sampling.repetition_penalty = kind % 4 == 1 ? 1.3f : 1.0f;
    sampling.frequency_penalty = kind % 4 == 2 ? 0.8f : 0.0f;
    sampling.presence_penalty = kind % 4 == 3 ? -0.6f : 0.0f;
    for (int64_t bias = 0; bias < kind % 8; ++bias) {
      sampling.logit_bias.push_back({.token = static_cast<int32_t>((vocabulary - 1) * bias / 8),
                                     .bias = bias == 3 ? -std::numeric_limits<float>::infinity()
                                                       : static_cast<float>(bias) - 2.5f});
    }
    request.log_probs = kind % 7 == 6 ? 21 : kind * 20 / 23;  // 21: the host's
    request.prompt_log_probs = kind % 3 == 0;
    requests.push_back(std::move(request));
  }
  const auto listener = [](int64_t, std::span<const float>) {};
  std::vector<Completion> alone;
  for (Request request : requests) {
    alone.push_back(engine.generate({request}).front());
    request.on_logits = listener;
    expect_near_host(alone.back(), engine.generate({request}).front());
  }
  for (const int steps_ahead : {0, 1}) {
    for (const int64_t max_requests : {5, 24}) {
      options.steps_ahead = steps_ahead;
      options.max_requests = max_requests;
      options.warm_up = max_requests == 24;
      Engine crowded = Engine::load(GetParam(), options);
      const std::vector<Completion> together = crowded.generate(requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        SCOPED_TRACE(i);
        expect_same(together[i], alone[i]);
      }
    }
  }
}

// Without --deterministic, too, each token is the one that its own logits give: with the
// log-probabilities of the step it was chosen in.
TEST_P(GpuEngine, LogProbabilitiesAreThoseOfTheChosenTokens) {
  EngineOptions options = on_gpu();
  options.context_size = 140;
  Engine engine = Engine::load(GetParam(), options);
  std::vector<Request> requests = requests_of(engine, 8);
  for (Request& request : requests) {
    request.sampling = {.temperature = 0.0f};
    request.log_probs = 20;
    request.ignore_eos = false;
  }
  for (const Completion& completion : engine.generate(requests)) {
    EXPECT_EQ(completion.error, "");
    ASSERT_EQ(completion.log_probs.size(), completion.tokens.size());
    for (size_t i = 0; i < completion.tokens.size(); ++i) {
      const TokenLogProbs& one = completion.log_probs[i];
      EXPECT_EQ(one.token.token, completion.tokens[i]);
      ASSERT_EQ(one.top.size(), 20u);
      EXPECT_EQ(one.top[0].token, completion.tokens[i]);
      EXPECT_EQ(one.top[0].log_prob, one.token.log_prob);
      double total = 0.0;
      for (size_t place = 0; place < one.top.size(); ++place) {
        total += std::exp(one.top[place].log_prob);
        EXPECT_TRUE(place == 0 || one.top[place].log_prob <= one.top[place - 1].log_prob);
      }
      EXPECT_LE(total, 1.0 + 1e-5);
    }
  }
}

TEST_P(GpuEngine, OutOfMemoryIsALine) {
  EngineOptions options = on_gpu();
  options.kv_tokens = int64_t{1} << 40;
  try {
    Engine::load(GetParam(), options);
    FAIL() << "there was enough memory";
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what())
                    .starts_with("the model does not fit on cuda:0 with a GPU "
                                 "memory utilization of 0.95: weights "))
        << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
  Engine::load(GetParam(), on_gpu());  // the device is as good as before
}

// Weights and the cache that is requested count as well, and nothing is loaded that will not fit.
TEST_P(GpuEngine, TheShareOfTheMemoryIsKept) {
  EngineOptions options = on_gpu();
  options.progress = [](int64_t, int64_t) { ADD_FAILURE() << "weights were read"; };
  const DeviceMemory memory = device_memory(testing::kGpu);
  options.gpu_memory_utilization = 1e-6;
  const auto refused = [&] {
    return testing::throws_error([&] { Engine::load(GetParam(), options); },
                                 "the model does not fit on cuda:0 with a GPU memory utilization");
  };
  EXPECT_TRUE(refused());
  options.kv_tokens = 16;
  EXPECT_TRUE(refused());
  options.gpu_memory_utilization = 0.5;
  options.kv_tokens = 0;
  options.kv_bytes = memory.total / 2;
  EXPECT_TRUE(refused());
  options.kv_bytes = 0;
  options.progress = {};
  const Engine engine = Engine::load(GetParam(), options);
  EXPECT_LE(device_memory(testing::kGpu).total - device_memory(testing::kGpu).free,
            memory.total / 2);
}

TEST(GpuMemory, WeightsThatDoNotFitTheShareAreNotMade) {
  if (cuda_device_count() == 0) {
    GTEST_SKIP() << "there is no CUDA device";
  }
  EngineOptions options = on_gpu();
  options.gpu_memory_utilization = 0.01;
  const int64_t free = device_memory(testing::kGpu).free;
  for (const char* format : {"dense", "tca_bme"}) {
    EXPECT_TRUE(testing::throws_error(
        [&] {
          Engine::load_random(testing::source_dir() / "configs" / "llama-2-7b.json",
                              {.sparsity = 0.6, .format = format}, options);
        },
        "the model does not fit on cuda:0 with a GPU memory utilization of 0.01: weights "));
  }
  EXPECT_GE(device_memory(testing::kGpu).free, free - (int64_t{1} << 30));
}

// Converted models.
class GpuConvertedModel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "there is no CUDA device";
    }
  }

  std::filesystem::path convert(const std::string& model, const char* format, double sparsity) {
    const std::filesystem::path output =
        directory_.path() / fmt::format("{}-{}-{}", model, format, sparsity);
    convert_model({.input = testing::data("models") / model,
                   .output = output,
                   .plan = SparsityPlan::uniform(
                       {.method = parse_prune_method("magnitude"), .sparsity = sparsity}, format)});
    return output;
  }

 private:
  testing::TempDir directory_;
};

TEST_F(GpuConvertedModel, RunsAsADenseOne) {
  const std::string model = "fable-opt-8m";
  EngineOptions options = on_gpu();
  options.deterministic = true;
  Engine plain = Engine::load(convert(model, "dense", 0.5), options);
  const std::vector<Request> requests = requests_of(plain, 5);
  const std::vector<Completion> expected = plain.generate(requests);
  for (const char* format : {"tiled_csl", "tca_bme"}) {
    const std::filesystem::path output = convert(model, format, 0.5);
    options.weight_format = "dense";
    Engine engine = Engine::load(output, options);
    const std::vector<Completion> got = engine.generate(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      expect_same(got[i], expected[i]);
    }
  }
}

// The logits of all positions of a prompt.
std::vector<float> logits_of(Engine& engine, const std::vector<int32_t>& prompt) {
  std::vector<float> all;
  Request request;
  request.prompt = prompt;
  request.max_tokens = 0;
  request.score_prompt = true;
  request.on_logits = [&](int64_t, std::span<const float> logits) {
    all.insert(all.end(), logits.begin(), logits.end());
  };
  EXPECT_EQ(engine.generate({request}).front().error, "");
  return all;
}

void expect_close(const std::vector<float>& got, const std::vector<float>& expected,
                  double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  double worst = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_FALSE(std::isnan(got[i])) << i;
    worst = std::max(worst, std::abs(double{got[i]} - double{expected[i]}));
  }
  EXPECT_LE(worst, tolerance);
}

std::vector<int32_t> some_prompt(int64_t length) {
  std::vector<int32_t> prompt;
  std::mt19937 engine(5);
  for (int64_t i = 0; i < length; ++i) {
    prompt.push_back(static_cast<int32_t>(5 + engine() % 900));
  }
  return prompt;
}

TEST_F(GpuConvertedModel, HasTheLogitsOfTheCpu) {
  for (const char* model : {"fable-opt-8m", "fable-llama-relu-8m"}) {
    for (const auto& [format, sparsity] :
         {std::pair{"tca_bme", 0.5}, {"tca_bme", 0.9}, {"smallest", 0.5}, {"smallest", 0.9}}) {
      const std::filesystem::path converted = convert(model, format, sparsity);
      EngineOptions options;
      options.with_tokenizer = false;
      Engine cpu = Engine::load(converted, options);
      for (int64_t length : {1, 7, 40, 200}) {
        SCOPED_TRACE(
            fmt::format("{} as {}, sparsity {}, {} tokens", model, format, sparsity, length));
        const std::vector<int32_t> prompt = some_prompt(length);
        const std::vector<float> expected = logits_of(cpu, prompt);
        for (bool deterministic : {false, true}) {
          options = on_gpu();
          options.deterministic = deterministic;
          Engine gpu = Engine::load(converted, options);
          expect_close(logits_of(gpu, prompt), expected, 2.0 * kTolerance);
        }
      }
    }
  }
}

// From dense values to the same bytes as a conversion, on the device.
TEST_F(GpuConvertedModel, IsLikeACheckpointThatIsConvertedWhileLoading) {
  for (const char* model : {"fable-opt-8m", "fable-llama-relu-8m"}) {
    EngineOptions options = on_gpu();
    options.deterministic = true;
    const std::filesystem::path directory = convert(model, "tca_bme", 0.6);
    Engine converted = Engine::load(directory, options);
    options.weight_format = "tca_bme";
    Engine plain = Engine::load(convert(model, "dense", 0.6), options);
    EXPECT_EQ(plain.stats().weight_bytes, converted.stats().weight_bytes);
    const std::vector<Request> requests = requests_of(plain, 5);
    const std::vector<Completion> got = plain.generate(requests);
    const std::vector<Completion> expected = converted.generate(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      expect_same(got[i], expected[i]);
    }
    options.dtype = DType::bf16;
    Engine in_bf16 = Engine::load(directory, options);
    expect_close(logits_of(in_bf16, some_prompt(20)), logits_of(plain, some_prompt(20)),
                 16.0 * kTolerance);
  }
}

// As it is stored, and encoded while loading, on the GPU.
TEST_F(GpuConvertedModel, TakesTheMemoryOfTheFit) {
  for (const char* stored : {"tca_bme", "dense"}) {
    SCOPED_TRACE(stored);
    const std::filesystem::path converted = convert("fable-llama-relu-8m", stored, 0.6);
    EngineOptions options = on_gpu();
    options.weight_format = "tca_bme";
    const Checkpoint checkpoint(converted);
    const WeightStore store(checkpoint);
    const MemoryFit fit =
        fit_memory(read_model_config(converted), DType::f16, options, {.store = &store});
    const Engine engine = Engine::load(converted, options);
    EXPECT_NEAR(static_cast<double>(fit.weights), static_cast<double>(engine.stats().weight_bytes),
                0.01 * static_cast<double>(fit.weights));
    EXPECT_EQ(fit.step, engine.stats().workspace_bytes);
    options.device = kPlannedGpu;
    options.gpu_memory = device_memory(testing::kGpu).total;
    const MemoryFit planned =
        fit_memory(read_model_config(converted), DType::f16, options, {.store = &store});
    EXPECT_EQ(planned.weights, fit.weights);
    EXPECT_NEAR(static_cast<double>(planned.step), static_cast<double>(fit.step),
                0.05 * static_cast<double>(fit.step));
    const std::vector<FormatSum> loaded = engine.linear_weights();
    ASSERT_EQ(loaded.size(), 1u);
    ASSERT_EQ(fit.linear_weights.size(), 1u);
    EXPECT_EQ(loaded[0].format, "tca_bme");
    EXPECT_EQ(fit.linear_weights[0].format, "tca_bme");
    EXPECT_TRUE(loaded[0].nonzeros.has_value());
    EXPECT_EQ(loaded[0].nonzeros, fit.linear_weights[0].nonzeros);
    EXPECT_EQ(loaded[0].dense_bytes, fit.linear_weights[0].dense_bytes);
  }
}

TEST_F(GpuConvertedModel, IsRefusedIfItIsDamaged) {
  const std::filesystem::path converted = convert("fable-opt-8m", "tca_bme", 0.6);
  const std::filesystem::path file = converted / "model.safetensors";
  const auto flip = [&](int64_t offset) {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(offset);
    const int byte = bytes.get();
    bytes.seekp(offset);
    bytes.put(static_cast<char>(byte ^ 1));
  };
  // The value projection is joined with two others.
  const std::string module = "model.decoder.layers.1.self_attn.v_proj.weight";
  for (const char* part : {".tca_bme.records", ".tca_bme.starts", ".tca_bme.layout"}) {
    int64_t offset = 0;
    {
      const Checkpoint checkpoint(converted);
      offset = checkpoint.find(module + part)->bytes.data() -
               checkpoint.files().front().file().bytes().data();
    }
    flip(offset);
    EXPECT_TRUE(testing::throws_error([&] { Engine::load(converted, on_gpu()); }, module));
    EXPECT_TRUE(testing::throws_error([&] { Engine::load(converted, on_gpu()); }, ": tca_bme: "));
    flip(offset);
  }
  EXPECT_NO_THROW(Engine::load(converted, on_gpu()));
}

TEST_F(GpuConvertedModel, OfRandomWeights) {
  const std::filesystem::path config = testing::data("models/fable-llama-relu-8m") / "config.json";
  for (double sparsity : {0.0, 0.6, 0.9}) {
    EngineOptions options = on_gpu();
    options.deterministic = true;
    options.weight_format = "tca_bme";
    RandomWeights weights{
        .dtype = DType::f16, .sparsity = sparsity, .seed = 3, .format = "tca_bme"};
    Engine sparse = Engine::load_random(config, weights, options);
    const MemoryFit fit =
        fit_memory(read_model_config_file(config), DType::f16, options, {.random = weights});
    EXPECT_NEAR(static_cast<double>(fit.weights), static_cast<double>(sparse.stats().weight_bytes),
                0.02 * static_cast<double>(fit.weights));
    EXPECT_EQ(fit.step, sparse.stats().workspace_bytes);
    options.weight_format = "dense";
    weights.format = "dense";
    Engine dense = Engine::load_random(config, weights, options);
    expect_close(logits_of(sparse, some_prompt(30)), logits_of(dense, some_prompt(30)),
                 2.0 * kTolerance);
  }
}

// Layers of different formats and shares of zeros, some of which are joined.
TEST_F(GpuConvertedModel, OfPlannedRandomWeights) {
  const std::filesystem::path file = testing::data("models/fable-llama-relu-8m") / "config.json";
  const ModelConfig config = read_model_config_file(file);
  const testing::TempDir dir;
  const SparsityPlan plan = SparsityPlan::read(dir.write("plan.json", R"({"rules": [
      {"tensors": "*", "layers": {"ends": "1/8"}, "prune": "none"},
      {"tensors": "*.k_proj", "prune": "2:4", "format": "dense"},
      {"tensors": "*.gate_proj", "prune": "random", "scope": "matrix", "sparsity": 0.9,
       "format": "tiled_csl"}],
      "default": {"prune": "magnitude", "sparsity": 0.6}})"));
  EngineOptions options = on_gpu();
  options.deterministic = true;
  RandomWeights weights{.dtype = DType::f16, .seed = 3};
  weights.planned =
      plan_random_linears(plan, config, {.device = options.device, .dtype = weights.dtype});
  Engine sparse = Engine::load_random(file, weights, options);
  const MemoryFit fit = fit_memory(config, DType::f16, options, {.random = weights});
  EXPECT_NEAR(static_cast<double>(fit.weights), static_cast<double>(sparse.stats().weight_bytes),
              0.05 * static_cast<double>(fit.weights));
  EXPECT_EQ(fit.step, sparse.stats().workspace_bytes);
  ASSERT_EQ(fit.linear_weights.size(), 3u);
  for (auto& [module, linear] : weights.planned) {
    linear.format = "dense";
  }
  Engine dense = Engine::load_random(file, weights, options);
  EXPECT_LT(sparse.stats().weight_bytes, dense.stats().weight_bytes);
  expect_close(logits_of(sparse, some_prompt(30)), logits_of(dense, some_prompt(30)),
               2.0 * kTolerance);
}

TEST_F(GpuConvertedModel, OfUnevenRandomWeights) {
  const std::filesystem::path config = testing::data("models/fable-llama-relu-8m") / "config.json";
  for (const char* pattern : {"rows:0.5", "columns:0.5", "outliers:0.02", "dense-blocks:0.05"}) {
    SCOPED_TRACE(pattern);
    EngineOptions options = on_gpu();
    options.deterministic = true;
    options.weight_format = "tca_bme";
    RandomWeights weights{.dtype = DType::f16,
                          .sparsity = 0.6,
                          .pattern = parse_zero_pattern(pattern).value(),
                          .seed = 3,
                          .format = "tca_bme"};
    Engine sparse = Engine::load_random(config, weights, options);
    options.weight_format = "dense";
    weights.format = "dense";
    Engine dense = Engine::load_random(config, weights, options);
    expect_close(logits_of(sparse, some_prompt(30)), logits_of(dense, some_prompt(30)),
                 2.0 * kTolerance);
  }
}

TEST(GpuInfiniteLogits, EndTheirRequest) {
  if (cuda_device_count() == 0) {
    GTEST_SKIP() << "there is no CUDA device";
  }
  testing::expect_infinite_logits_are_errors(testing::kGpu);
}

TEST(GpuSoak, EveryRequestIsAsIfItWereAlone) {
  if (cuda_device_count() == 0) {
    GTEST_SKIP() << "there is no CUDA device";
  }
  testing::soak({.device = testing::kGpu});
}

}  // namespace
}  // namespace sparsellm
