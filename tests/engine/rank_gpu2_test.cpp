// Engines whose weights are shared by two GPUs.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/memory_fit.h"
#include "kernels/base/error.h"
#include "models/shard.h"
#include "models/weights/random_weights.h"
#include "tests/engine/check_reference.h"
#include "tests/engine/engine_gpu_fixture.h"
#include "tests/engine/soak.h"
#include "tests/testing/forwarding_runner.h"
#include "tests/testing/paths.h"
#include "tests/testing/reference.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::expect_near_host;
using testing::expect_same;
using testing::on_gpu;
using testing::requests_of;
using testing::Rows;
using testing::Tolerances;

// Listed logits as on one GPU; whole rows have no bound of their own, but one against those of one
// GPU. bf16 has three bits less than f16.
constexpr float kNoBound = std::numeric_limits<float>::max();
constexpr Tolerances kF16{.logits = 0.02f, .rows = kNoBound};
constexpr Tolerances kBf16{.logits = 0.16f, .rows = kNoBound};

EngineOptions on_two_gpus() {
  EngineOptions options = on_gpu();
  options.tensor_parallel.degree = 2;
  options.tensor_parallel.timeout = std::chrono::seconds(20);
  return options;
}

std::vector<fs::path> shared_checkpoints() {
  std::vector<fs::path> shared;
  for (const fs::path& checkpoint : testing::all_checkpoints()) {
    if (why_not_shared(read_model_config(checkpoint), 2).empty()) {
      shared.push_back(checkpoint);
    }
  }
  return shared;
}

class TwoGpus : public ::testing::TestWithParam<fs::path> {
 protected:
  void SetUp() override {
    if (const int gpus = cuda_device_count(); gpus < 2) {
      GTEST_SKIP() << "2 ranks need 2 GPUs, there " << (gpus == 1 ? "is " : "are ") << gpus;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Checkpoints, TwoGpus, ::testing::ValuesIn(shared_checkpoints()),
                         testing::checkpoint_name);

TEST_P(TwoGpus, Reference) {
  for (const bool deterministic : {false, true}) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      SCOPED_TRACE(fmt::format("{}{}", name_of(dtype), deterministic ? ", deterministic" : ""));
      EngineOptions options = on_two_gpus();
      options.dtype = dtype;
      options.deterministic = deterministic;
      Engine engine = Engine::load(GetParam(), options);
      for (const Rows rows : {Rows::prompt, Rows::decoded}) {
        testing::expect_reference(engine, GetParam(), rows, dtype == DType::f16 ? kF16 : kBf16);
      }
    }
  }
}

// Sampled on the GPUs, by graphs; alone and in a batch, with pages for all and with too few.
TEST_P(TwoGpus, ResultsDependOnTheRequestAlone) {
  EngineOptions options = on_two_gpus();
  options.deterministic = true;
  Engine engine = Engine::load(GetParam(), options);
  const std::vector<Request> requests = requests_of(engine, 12);
  const std::vector<Completion> expected = engine.generate(requests);
  for (size_t i = 0; i < requests.size(); i += 5) {
    expect_same(engine.generate({requests[i]}).front(), expected[i]);
  }
  options.steps_ahead = 0;
  options.warm_up = true;
  Engine again = Engine::load(GetParam(), options);
  const std::vector<Completion> found = again.generate(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    expect_same(found[i], expected[i]);
  }
}

// Both ranks adjust and sample the same (else the engine ends), and what they choose is what the
// host of rank 0 chooses of the same logits.
TEST_P(TwoGpus, HostAndDevicesSampleTheSame) {
  EngineOptions options = on_two_gpus();
  options.deterministic = true;
  Engine engine = Engine::load(GetParam(), options);
  for (Request request : requests_of(engine, 12)) {
    const Completion on_devices = engine.generate({request}).front();
    request.on_logits = [](int64_t, std::span<const float>) {};
    expect_near_host(on_devices, engine.generate({request}).front());
  }
}

TEST_P(TwoGpus, LogitsAreThoseOfOneGpu) {
  // In f16, which rounds an eighth as much as the bf16 that some of the checkpoints are in.
  EngineOptions on_one = on_gpu();
  EngineOptions on_two = on_two_gpus();
  on_one.dtype = on_two.dtype = DType::f16;
  Engine one = Engine::load(GetParam(), on_one);
  Engine two = Engine::load(GetParam(), on_two);
  const std::vector<int32_t> text = requests_of(one, 1).front().prompt;
  double squares = 0.0;
  double differences = 0.0;
  const testing::LogitRows found = testing::score(two, text, 2);
  for (const auto& [position, row] : testing::score(one, text, 2)) {
    for (size_t id = 0; id < row.size(); ++id) {
      const double value = row[id];
      squares += value * value;
      differences += std::pow(found.at(position)[id] - value, 2);
    }
  }
  EXPECT_LT(std::sqrt(differences / squares), 0.0025);
}

TEST_P(TwoGpus, SparseFormats) {
  for (const char* format : {"tca_bme", "tiled_csl", "auto"}) {
    SCOPED_TRACE(format);
    EngineOptions options = on_two_gpus();
    options.dtype = DType::f16;
    options.weight_format = format;
    Engine engine = Engine::load(GetParam(), options);
    testing::expect_reference(engine, GetParam(), Rows::prompt, kF16);
    testing::expect_reference(engine, GetParam(), Rows::decoded, kF16);
  }
}

class TwoGpusOnce : public TwoGpus {};
INSTANTIATE_TEST_SUITE_P(Checkpoint, TwoGpusOnce,
                         ::testing::Values(testing::data("tiny/llama_fatrelu")),
                         testing::checkpoint_name);

TEST_P(TwoGpusOnce, NeuronsOfAllRanks) {
  for (const bool predict : {false, true}) {
    EngineOptions options = on_gpu();
    options.deterministic = true;
    options.activation_sparsity.mode =
        predict ? ActivationSparsity::Mode::predict : ActivationSparsity::Mode::exact;
    if (predict) {
      options.activation_sparsity.votes = Votes::sign;
      options.activation_sparsity.alpha = {.value = 1.05f, .layers = std::nullopt};
    }
    Engine one = Engine::load(GetParam(), options);
    options.tensor_parallel = on_two_gpus().tensor_parallel;
    Engine two = Engine::load(GetParam(), options);
    const std::vector<int32_t> text = requests_of(one, 1).front().prompt;
    testing::expect_near(testing::score(two, text, 1), testing::score(one, text, 1), kF16.logits);
    EXPECT_GT(one.stats().neurons.active, 0);
    EXPECT_EQ(two.stats().neurons.rows, one.stats().neurons.rows);
    EXPECT_EQ(two.stats().neurons.neurons, one.stats().neurons.neurons);
    EXPECT_NEAR(static_cast<double>(two.stats().neurons.active),
                static_cast<double>(one.stats().neurons.active),
                0.01 * static_cast<double>(one.stats().neurons.neurons));
  }
}

TEST_P(TwoGpusOnce, RandomArrivals) {
  testing::soak({.device = {.kind = Device::Kind::cuda}, .ranks = 2, .requests = 400});
}

// So many rows that a sum takes several calls of the kernels.
TEST_P(TwoGpusOnce, LongPrompts) {
  const fs::path config = testing::source_dir() / "configs" / "opt-125m.json";
  RandomWeights weights{.dtype = DType::f16, .sparsity = 0.6};
  Request request;
  for (int32_t i = 0; i < 1700; ++i) {
    request.prompt.push_back(i * 7919 % 50000);
  }
  request.max_tokens = 1;
  for (const char* format : {"dense", "tca_bme"}) {
    SCOPED_TRACE(format);
    weights.format = format;
    EngineOptions options = on_gpu();
    options.step_tokens = 2048;
    std::vector<std::vector<float>> logits;
    for (const int degree : {1, 2, 2}) {
      options.tensor_parallel.degree = degree;
      Engine engine = Engine::load_random(config, weights, options);
      request.on_logits = [&](int64_t, std::span<const float> values) {
        logits.emplace_back(values.begin(), values.end());
      };
      EXPECT_EQ(engine.generate({request}).front().error, "");
    }
    ASSERT_EQ(logits.size(), 3);
    EXPECT_EQ(logits[1], logits[2]);
    const float largest = *std::ranges::max_element(logits[0]);
    for (size_t id = 0; id < logits[0].size(); ++id) {
      ASSERT_NEAR(logits[1][id], logits[0][id], 0.01f * largest) << "token " << id;
    }
  }
}

// The host looks at every row of several long passes, as when a text is scored: the ranks are not
// at the same place then, and kernels that are loaded at their first use are waited for
// (Communicator::meet()).
TEST_P(TwoGpusOnce, LongPromptsThatAreScored) {
  const fs::path config = testing::source_dir() / "configs" / "opt-125m.json";
  constexpr int32_t kTokens = 512;
  constexpr int32_t kPrompts = 10;
  constexpr size_t kIds = 32;  // of a row that are compared
  testing::LogitRows rows[2];
  for (const int degree : {1, 2}) {
    EngineOptions options = on_two_gpus();
    options.step_tokens = 2048;
    options.tensor_parallel.degree = degree;
    Engine engine = Engine::load_random(config, {.dtype = DType::f16}, options);
    std::vector<Request> requests(kPrompts);
    for (int32_t i = 0; i < kPrompts; ++i) {
      Request& request = requests[static_cast<size_t>(i)];
      for (int32_t token = 0; token < kTokens; ++token) {
        request.prompt.push_back((token * 7919 + i * 331) % 50000);
      }
      request.max_tokens = 0;
      request.score_prompt = true;
      request.on_logits = [&, i](int64_t position, std::span<const float> values) {
        rows[degree - 1][i * kTokens + position].assign(values.begin(), values.begin() + kIds);
      };
    }
    for (const Completion& completion : engine.generate(requests)) {
      EXPECT_EQ(completion.error, "");
    }
    EXPECT_EQ(std::ssize(rows[degree - 1]), kPrompts * kTokens);
  }
  testing::expect_near(rows[1], rows[0], kF16.logits);
}

TEST_P(TwoGpusOnce, MemoryOfARank) {
  EngineOptions options = on_two_gpus();
  options.kv_tokens = 1024;
  Engine engine = Engine::load(GetParam(), options);
  const MemoryFit fit = fit_memory(read_model_config(GetParam()), DType::f16, options);
  EXPECT_EQ(fit.weights, engine.stats().weight_bytes);
  EXPECT_EQ(fit.step, engine.stats().workspace_bytes);
}

TEST_P(TwoGpusOnce, DevicesThatAreRefused) {
  EngineOptions options = on_two_gpus();
  options.tensor_parallel.degree = 64;
  EXPECT_TRUE(testing::throws_error([&] { Engine::load(GetParam(), options); }, "64"));
  options = on_two_gpus();
  options.tensor_parallel.devices = {options.device, options.device};
  EXPECT_TRUE(
      testing::throws_error([&] { Engine::load(GetParam(), options); }, "two ranks on cuda:0"));
}

// From some step on rank 0 does something else.
class Strange : public testing::ForwardingRunner {
 public:
  enum class How : uint8_t { throws, computes_nothing };
  Strange(std::unique_ptr<StepRunner> runner, How how)
      : ForwardingRunner(std::move(runner)), how_(how) {}

  int launch(const RankStep& step, const KvCache& kv) override {
    nothing_ = ++launches_ > 3;
    if (nothing_ && how_ == How::throws) {
      throw Error("a bad step");
    }
    return nothing_ ? launches_ % 2 : ForwardingRunner::launch(step, kv);
  }
  std::optional<Tensor> next_logits() override {
    return nothing_ ? std::nullopt : ForwardingRunner::next_logits();
  }
  std::span<const int32_t> finish(int number) override {
    if (!nothing_) {
      return ForwardingRunner::finish(number);
    }
    tokens_.assign(64, 0);
    return tokens_;
  }

 private:
  How how_;
  bool nothing_ = false;
  int launches_ = 0;
  std::vector<int32_t> tokens_;
};

TEST_P(TwoGpusOnce, ARankThatFailsOrStallsEndsTheEngine) {
  for (const Strange::How how : {Strange::How::throws, Strange::How::computes_nothing}) {
    EngineOptions options = on_two_gpus();
    options.tensor_parallel.timeout = std::chrono::seconds(2);
    options.wrap_runner = [how](std::unique_ptr<StepRunner> runner) {
      return std::make_unique<Strange>(std::move(runner), how);
    };
    const auto start = [&] {
      Engine engine = Engine::load(GetParam(), options);
      Request request = requests_of(engine, 1).front();
      request.max_tokens = 30;
      std::string error;
      engine.submit(request, [&](const TokenEvent& event) {
        if (event.finish) {
          error = event.error;
        }
      });
      const auto begin = std::chrono::steady_clock::now();
      try {
        while (engine.step()) {
        }
        ADD_FAILURE() << "no error";
      } catch (const DeviceLost& lost) {
        const std::string expected = how == Strange::How::throws
                                         ? "rank 0 (cuda:0): a bad step"
                                         : "rank 0 (cuda:0): did not come within 2 s";
        EXPECT_EQ(lost.what(), expected);
        EXPECT_EQ(error, lost.what());
      }
      return begin;
    };
    const auto begin = start();  // the engine has gone, too
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(7));
  }
}

}  // namespace
}  // namespace sparsellm
