// Engines whose weights are shared by several ranks, as threads on the CPU, against values that
// were computed independently and against one rank.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kernels/base/error.h"
#include "models/shard.h"
#include "tests/engine/check_reference.h"
#include "tests/engine/request_bits.h"
#include "tests/testing/forwarding_runner.h"
#include "tests/testing/paths.h"
#include "tests/testing/reference.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::RequestBits;
using testing::run_bits;
using testing::sampled_crowd;

EngineOptions options_for(int degree) {
  EngineOptions options;
  options.tensor_parallel.degree = degree;
  options.max_requests = 6;
  options.step_tokens = 64;
  options.kv_tokens = 1024;
  options.with_tokenizer = false;
  return options;
}

// Up to 4, of those that the model allows.
std::vector<int> degrees_of(const fs::path& directory) {
  std::vector<int> degrees;
  for (int degree = 2; degree <= 4; ++degree) {
    if (why_not_shared(read_model_config(directory), degree).empty()) {
      degrees.push_back(degree);
    }
  }
  return degrees;
}

std::string name_of_checkpoint(const ::testing::TestParamInfo<fs::path>& info) {
  std::string name = info.param.filename().string();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

class TensorParallelGolden : public ::testing::TestWithParam<fs::path> {};
INSTANTIATE_TEST_SUITE_P(Checkpoints, TensorParallelGolden,
                         ::testing::ValuesIn(testing::all_checkpoints()), name_of_checkpoint);

TEST_P(TensorParallelGolden, LogitsAndTokens) {
  for (const int degree : degrees_of(GetParam())) {
    SCOPED_TRACE(degree);
    Engine engine = Engine::load(GetParam(), options_for(degree));
    testing::expect_reference(engine, GetParam());
  }
}

// The same bits run after run, alone, in a batch, and after a preemption.
TEST(TensorParallel, ResultsDependOnTheRequestAlone) {
  const fs::path directory = testing::data("tiny/llama3");
  for (const int degree : degrees_of(directory)) {
    SCOPED_TRACE(degree);
    Engine engine = Engine::load(directory, options_for(degree));
    const std::vector<RequestBits> expected = run_bits(engine, sampled_crowd());
    EXPECT_EQ(engine.stats().preemptions, 0);
    EXPECT_TRUE(run_bits(engine, sampled_crowd()) == expected);
    Engine again = Engine::load(directory, options_for(degree));
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(run_bits(again, {sampled_crowd()[i]}).front() == expected[i]) << i;
    }
    for (const int steps_ahead : {0, 1}) {
      EngineOptions small = options_for(degree);
      small.kv_tokens = 128;
      small.steps_ahead = steps_ahead;
      small.threads = 2 * degree + 1;
      Engine crowded = Engine::load(directory, small);
      EXPECT_TRUE(run_bits(crowded, sampled_crowd()) == expected);
      EXPECT_GT(crowded.stats().preemptions, 0);
      // Without listeners rows are planned whose tokens are not known yet.
      const std::vector<Completion> silent = crowded.generate(sampled_crowd());
      for (size_t i = 0; i < silent.size(); ++i) {
        EXPECT_EQ(silent[i].tokens, expected[i].tokens);
      }
    }
  }
}

// With activation sparsity ranks skip neurons of their own, and count them together.
TEST(TensorParallel, NeuronsAreCountedOnAllRanks) {
  const fs::path directory = testing::data("tiny/llama_fatrelu");
  EngineOptions options = options_for(1);
  options.activation_sparsity.mode = ActivationSparsity::Mode::exact;
  Engine one = Engine::load(directory, options);
  const std::vector<RequestBits> expected = run_bits(one, sampled_crowd());
  const NeuronCounts counts = one.stats().neurons;
  ASSERT_GT(counts.neurons, 0);
  for (const int degree : degrees_of(directory)) {
    options.tensor_parallel.degree = degree;
    Engine engine = Engine::load(directory, options);
    const std::vector<RequestBits> got = run_bits(engine, sampled_crowd());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].tokens, expected[i].tokens);
    }
    EXPECT_EQ(engine.stats().neurons.rows, counts.rows);
    EXPECT_EQ(engine.stats().neurons.neurons, counts.neurons);
    EXPECT_EQ(engine.stats().neurons.active, counts.active);
    EXPECT_EQ(engine.neuron_counts().size(), one.neuron_counts().size());
  }
}

TEST(TensorParallel, WeightsThatAreEncodedWhileLoading) {
  const fs::path directory = testing::data("tiny/llama3");
  for (const char* format : {"tca_bme", "tiled_csl"}) {
    EngineOptions options = options_for(1);
    options.weight_format = format;
    Engine one = Engine::load(directory, options);
    options.tensor_parallel.degree = 2;
    Engine two = Engine::load(directory, options);
    const std::vector<int32_t> prompt = sampled_crowd()[5].prompt;
    testing::expect_near(testing::score(two, prompt), testing::score(one, prompt),
                         testing::kRowTolerance);
  }
}

TEST(TensorParallel, WhatCannotBeSharedIsRefusedByName) {
  const fs::path directory = testing::data("tiny/llama3");
  const auto refused = [&](EngineOptions options, const std::string& line) {
    EXPECT_TRUE(testing::throws_error([&] { Engine::load(directory, options); }, line)) << line;
  };
  refused(options_for(0), "0 ranks that share a model; use 1 to 1024");
  refused(options_for(3), "3 GPUs cannot share");
  EngineOptions options = options_for(2);
  options.tensor_parallel.timeout = {};
  refused(options, "ranks that wait 0 ms for each other");
}

class Failing : public testing::ForwardingRunner {
 public:
  using ForwardingRunner::ForwardingRunner;
  int launch(const RankStep& step, const KvCache& kv) override {
    require(++launches_ < 4, "a bad step");
    return ForwardingRunner::launch(step, kv);
  }

 private:
  int launches_ = 0;
};

TEST(TensorParallel, ARankThatFailsEndsTheEngine) {
  EngineOptions options = options_for(2);
  options.wrap_runner = [](std::unique_ptr<StepRunner> runner) {
    return std::make_unique<Failing>(std::move(runner));
  };
  Engine engine = Engine::load(testing::data("tiny/llama3"), options);
  std::string error;
  engine.submit(sampled_crowd()[0], [&](const TokenEvent& event) {
    if (event.finish) {
      error = event.error;
    }
  });
  const auto start = std::chrono::steady_clock::now();
  const std::string line = "rank 0 (cpu): a bad step";
  for (int again = 0; again < 2; ++again) {
    try {
      while (engine.step()) {
      }
      ADD_FAILURE() << "no error";
    } catch (const DeviceLost& lost) {
      EXPECT_EQ(lost.what(), line);
    }
    EXPECT_EQ(error, line);
    EXPECT_EQ(engine.failed(), line);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));  // it takes ms
}

// What a listener of the load throws stops all ranks.
TEST(TensorParallel, ALoadThatIsStopped) {
  struct Stopped {};
  EngineOptions options = options_for(2);
  options.progress = [](int64_t, int64_t) { throw Stopped(); };
  EXPECT_THROW(Engine::load(testing::data("tiny/llama3"), options), Stopped);
}

// A listener that throws ends its own request, and no rank.
TEST(TensorParallel, ListenersThatThrow) {
  Engine engine = Engine::load(testing::data("tiny/llama3"), options_for(2));
  std::vector<Request> requests = sampled_crowd();
  const std::vector<int32_t> expected = engine.generate({requests[1]}).front().tokens;
  requests[0].on_logits = [](int64_t, std::span<const float>) { throw Error("enough"); };
  const std::vector<Completion> done = engine.generate(requests);
  EXPECT_EQ(done[0].error, "enough");
  EXPECT_EQ(done[1].tokens, expected);
}

}  // namespace
}  // namespace sparsellm
