// Engines whose weights are shared by several ranks, as threads on the CPU, against values that
// were computed independently and against one rank.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "kernels/base/error.h"
#include "models/shard.h"
#include "models/weights/random_weights.h"
#include "tests/testing/forwarding_runner.h"
#include "tests/testing/paths.h"
#include "tests/testing/reference.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

// Of golden_test.cpp.
constexpr float kTolerance = 0.01f;
constexpr float kTightTolerance = 3e-4f;

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

using Logits = std::map<int64_t, std::vector<float>>;

Request scored(std::vector<int32_t> prompt, Logits& logits) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = 0;
  request.score_prompt = true;
  request.on_logits = [&logits](int64_t position, std::span<const float> values) {
    logits[position].assign(values.begin(), values.end());
  };
  return request;
}

Request sampled(std::vector<int32_t> prompt, int64_t max_tokens, uint64_t seed) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 1.0f;
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  request.seed = seed;
  return request;
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
    for (const auto& reference : testing::read_reference(GetParam()).greedy) {
      std::vector<int32_t> tokens = reference.ids;
      tokens.insert(tokens.end(), reference.output_ids.begin(), reference.output_ids.end());
      Logits logits;
      EXPECT_EQ(engine.generate({scored(tokens, logits)}).front().error, "");
      const auto last = std::ssize(reference.ids) - 1;
      for (size_t id = 0; id < reference.last_logits.size(); ++id) {
        ASSERT_NEAR(logits.at(last)[id], reference.last_logits[id], kTightTolerance) << id;
      }
      for (size_t i = 0; i < reference.top5_ids.size(); ++i) {
        EXPECT_NEAR(logits.at(last)[static_cast<size_t>(reference.top5_ids[i])],
                    reference.top5_logits[i], kTolerance);
      }
      for (size_t i = reference.ids.size(); i < tokens.size(); ++i) {
        const std::vector<float>& row = logits.at(static_cast<int64_t>(i) - 1);
        const float largest = *std::max_element(row.begin(), row.end());
        ASSERT_FALSE(std::isnan(largest));
        EXPECT_GE(row[static_cast<size_t>(tokens[i])], largest - kTolerance) << "position " << i;
      }
    }
  }
}

struct Result {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> bits;  // of all logits

  friend bool operator==(const Result&, const Result&) = default;
};

std::vector<Result> run(Engine& engine, std::vector<Request> requests) {
  std::vector<Result> results(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].on_logits = [&bits = results[i].bits](int64_t, std::span<const float> logits) {
      std::transform(logits.begin(), logits.end(), std::back_inserter(bits),
                     [](float logit) { return std::bit_cast<uint32_t>(logit); });
    };
  }
  const std::vector<Completion> done = engine.generate(std::move(requests));
  for (size_t i = 0; i < done.size(); ++i) {
    EXPECT_EQ(done[i].error, "");
    results[i].tokens = done[i].tokens;
  }
  EXPECT_EQ(engine.free_pages(), engine.total_pages());
  return results;
}

std::vector<Request> crowd() {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 6; ++i) {
    std::vector<int32_t> prompt;
    for (int32_t at = 0; at < 9 + 4 * i; ++at) {
      prompt.push_back(1 + (7 * at + 13 * i) % 60);
    }
    requests.push_back(sampled(std::move(prompt), 30, static_cast<uint64_t>(i)));
  }
  return requests;
}

// The same bits run after run, alone, in a batch, and after a preemption.
TEST(TensorParallel, ResultsDependOnTheRequestAlone) {
  const fs::path directory = testing::data("tiny/llama3");
  for (const int degree : degrees_of(directory)) {
    SCOPED_TRACE(degree);
    Engine engine = Engine::load(directory, options_for(degree));
    const std::vector<Result> expected = run(engine, crowd());
    EXPECT_EQ(engine.stats().preemptions, 0);
    EXPECT_TRUE(run(engine, crowd()) == expected);
    Engine again = Engine::load(directory, options_for(degree));
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(run(again, {crowd()[i]}).front() == expected[i]) << i;
    }
    for (const int steps_ahead : {0, 1}) {
      EngineOptions small = options_for(degree);
      small.kv_tokens = 128;
      small.steps_ahead = steps_ahead;
      small.threads = 2 * degree + 1;
      Engine crowded = Engine::load(directory, small);
      EXPECT_TRUE(run(crowded, crowd()) == expected);
      EXPECT_GT(crowded.stats().preemptions, 0);
      // Without listeners rows are planned whose tokens are not known yet.
      const std::vector<Completion> silent = crowded.generate(crowd());
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
  const std::vector<Result> expected = run(one, crowd());
  const NeuronCounts counts = one.stats().neurons;
  ASSERT_GT(counts.neurons, 0);
  for (const int degree : degrees_of(directory)) {
    options.tensor_parallel.degree = degree;
    Engine engine = Engine::load(directory, options);
    const std::vector<Result> got = run(engine, crowd());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].tokens, expected[i].tokens);
    }
    EXPECT_EQ(engine.stats().neurons.rows, counts.rows);
    EXPECT_EQ(engine.stats().neurons.neurons, counts.neurons);
    EXPECT_EQ(engine.stats().neurons.active, counts.active);
    EXPECT_EQ(engine.neuron_counts().size(), one.neuron_counts().size());
  }
}

TEST(TensorParallel, SparseWeightsAndRandomOnes) {
  const fs::path directory = testing::data("tiny/llama3");
  for (const char* format : {"tca_bme", "tiled_csl"}) {
    EngineOptions options = options_for(1);
    options.weight_format = format;
    Engine one = Engine::load(directory, options);
    options.tensor_parallel.degree = 2;
    Engine two = Engine::load(directory, options);
    Logits expected;
    Logits got;
    const std::vector<int32_t> prompt = crowd()[5].prompt;
    one.generate({scored(prompt, expected)});
    two.generate({scored(prompt, got)});
    ASSERT_EQ(got.size(), prompt.size());
    for (const auto& [position, row] : expected) {
      for (size_t id = 0; id < row.size(); ++id) {
        ASSERT_NEAR(got.at(position)[id], row[id], kTightTolerance) << format;
      }
    }
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
  engine.submit(crowd()[0], [&](const TokenEvent& event) {
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
  std::vector<Request> requests = crowd();
  const std::vector<int32_t> expected = engine.generate({requests[1]}).front().tokens;
  requests[0].on_logits = [](int64_t, std::span<const float>) { throw Error("enough"); };
  const std::vector<Completion> done = engine.generate(requests);
  EXPECT_EQ(done[0].error, "enough");
  EXPECT_EQ(done[1].tokens, expected);
}

}  // namespace
}  // namespace sparsellm
