// What an engine does where a device samples, adjusts logits and tells log-probabilities: the same
// as where the host does so, token by token and bit by bit.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "models/config.h"
#include "tests/engine/sampling_runner.h"
#include "tests/engine/soak.h"
#include "tests/testing/paths.h"

namespace sparsellm {
namespace {

using testing::SamplingRunner;

const std::filesystem::path& directory() {
  static const std::filesystem::path path = testing::data("tiny/llama3");
  return path;
}

using MakeRunner = std::function<std::unique_ptr<StepRunner>(std::unique_ptr<StepRunner>)>;

// `last`: the runner that was made.
MakeRunner sampling(const std::filesystem::path& model, SamplingRunner** last = nullptr) {
  const std::vector<int32_t> eos = read_model_config(model).eos_token_ids;
  return [eos, last](std::unique_ptr<StepRunner> runner) {
    auto made = std::make_unique<SamplingRunner>(std::move(runner), eos);
    if (last != nullptr) {
      *last = made.get();
    }
    return made;
  };
}

EngineOptions options_with(int steps_ahead) {
  EngineOptions options;
  options.threads = 1;
  options.with_tokenizer = false;
  options.context_size = 140;
  options.max_requests = 8;
  options.step_tokens = 64;
  options.steps_ahead = steps_ahead;
  return options;
}

// Every combination of a penalty, a bias and log-probabilities, greedy and sampled.
std::vector<Request> all_kinds(int32_t vocabulary) {
  std::mt19937 random(3);
  const auto below = [&](int64_t n) {
    return static_cast<int32_t>(random() % static_cast<uint64_t>(n));
  };
  std::vector<Request> requests;
  for (int kind = 0; kind < 48; ++kind) {
    Request request;
    const int32_t length = 1 + below(kind % 5 == 0 ? 90 : 20);
    for (int32_t i = 0; i < length; ++i) {
      request.prompt.push_back(below(vocabulary));
    }
    request.max_tokens = kind == 7 ? 0 : 4 + below(30);
    request.seed = static_cast<uint64_t>(kind);
    request.ignore_eos = kind % 3 != 0;
    request.samples = kind % 11 == 0 ? 3 : 1;
    request.sampling.temperature = kind % 2 == 0 ? 0.0f : 0.9f;
    switch (kind / 2 % 4) {
      case 0:
        break;
      case 1:
        request.sampling.repetition_penalty = 1.4f;
        break;
      case 2:
        request.sampling.frequency_penalty = 0.7f;
        request.sampling.presence_penalty = -0.2f;
        break;
      case 3:
        request.sampling.repetition_penalty = 0.8f;
        request.sampling.frequency_penalty = 1.5f;
        break;
    }
    if (kind / 8 % 2 == 1) {
      request.sampling.logit_bias = {
          {.token = below(vocabulary), .bias = 3.0f},
          {.token = vocabulary - 1, .bias = -std::numeric_limits<float>::infinity()}};
      request.sampling.logit_bias[0].token %= vocabulary - 1;
    }
    if (kind / 16 >= 1) {
      request.log_probs = kind % 4 == 1 ? 20 : below(6);
      request.prompt_log_probs = kind / 16 == 2;
    }
    requests.push_back(std::move(request));
  }
  requests[7].log_probs = 5;  // echo alone
  requests[7].prompt_log_probs = true;
  requests[20].decode_from = 1;
  requests[35].log_probs = 50;  // the host's
  return requests;
}

void expect_equal(const TokenLogProbs& got, const TokenLogProbs& expected) {
  EXPECT_EQ(got.token.token, expected.token.token);
  EXPECT_EQ(got.token.log_prob, expected.token.log_prob);
  ASSERT_EQ(got.top.size(), expected.top.size());
  for (size_t i = 0; i < got.top.size(); ++i) {
    EXPECT_EQ(got.top[i].token, expected.top[i].token);
    EXPECT_EQ(got.top[i].log_prob, expected.top[i].log_prob);
  }
}

void expect_equal(const std::vector<Completion>& got, const std::vector<Completion>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(fmt::format("request {}, sample {}", expected[i].request, expected[i].sample));
    EXPECT_EQ(got[i].error, expected[i].error);
    EXPECT_EQ(got[i].finish, expected[i].finish);
    EXPECT_EQ(got[i].tokens, expected[i].tokens);
    ASSERT_EQ(got[i].log_probs.size(), expected[i].log_probs.size());
    for (size_t j = 0; j < got[i].log_probs.size(); ++j) {
      expect_equal(got[i].log_probs[j], expected[i].log_probs[j]);
    }
    ASSERT_EQ(got[i].prompt_log_probs.size(), expected[i].prompt_log_probs.size());
    for (size_t j = 0; j < got[i].prompt_log_probs.size(); ++j) {
      expect_equal(got[i].prompt_log_probs[j], expected[i].prompt_log_probs[j]);
    }
  }
}

TEST(DeviceSampling, IsThatOfTheHost) {
  Engine on_host = Engine::load(directory(), options_with(0));
  const std::vector<Request> requests =
      all_kinds(static_cast<int32_t>(on_host.config().vocab_size));
  const std::vector<Completion> expected = on_host.generate(requests);
  for (const Completion& completion : expected) {
    EXPECT_EQ(completion.error, "");
  }
  for (const int steps_ahead : {0, 1}) {
    for (const int64_t kv_tokens : {0, 200}) {
      SCOPED_TRACE(fmt::format("{} steps ahead, {} tokens of KV cache", steps_ahead, kv_tokens));
      SamplingRunner* runner = nullptr;
      EngineOptions options = options_with(steps_ahead);
      options.kv_tokens = kv_tokens;
      options.wrap_runner = sampling(directory(), &runner);
      Engine engine = Engine::load(directory(), options);
      expect_equal(engine.generate(requests), expected);
      EXPECT_GT(runner->adjusted_rows(), 500);
      EXPECT_GT(runner->log_prob_rows(), 500);
      EXPECT_EQ(runner->unknown_ids() > 0, steps_ahead > 0);
      EXPECT_EQ(engine.stats().preemptions > 0, kv_tokens > 0);
      EXPECT_EQ(engine.free_pages(), engine.total_pages());
    }
  }
}

// No logits go to the host, and steps are enqueued ahead, except for a request whose logits are
// shown or that asks for more log-probabilities than a device computes.
TEST(DeviceSampling, NothingWaitsForTheHost) {
  for (const int32_t top : {20, 21}) {
    SamplingRunner* runner = nullptr;
    EngineOptions options = options_with(1);
    options.wrap_runner = sampling(directory(), &runner);
    Engine engine = Engine::load(directory(), options);
    Request request{.prompt = {1, 2, 3, 4}, .max_tokens = 12, .ignore_eos = true};
    request.sampling.repetition_penalty = 1.2f;
    request.sampling.logit_bias = {{.token = 9, .bias = 1.0f}};
    request.log_probs = top;
    request.prompt_log_probs = true;
    const Completion completion = engine.generate({request}).front();
    EXPECT_EQ(completion.tokens.size(), 12u);
    EXPECT_EQ(completion.log_probs.size(), 12u);
    EXPECT_EQ(completion.prompt_log_probs.size(), 3u);
    EXPECT_EQ(completion.log_probs[3].top.size(), static_cast<size_t>(top));
    if (top == 20) {
      EXPECT_EQ(runner->host_rows(), 0);
      EXPECT_EQ(runner->adjusted_rows(), 12);
      EXPECT_EQ(runner->log_prob_rows(), 15);
      EXPECT_EQ(runner->unknown_ids(), 11);
    } else {
      EXPECT_EQ(runner->host_rows(), 15);
      EXPECT_EQ(runner->adjusted_rows(), 0);
      EXPECT_EQ(runner->log_prob_rows(), 0);
      EXPECT_EQ(runner->unknown_ids(), 0);
    }
  }
}

// More different tokens than a device takes for a row.
TEST(DeviceSampling, LongListsAreAdjustedOnTheHost) {
  Sequence sequence;
  Request request{.prompt = {1}};
  request.sampling.repetition_penalty = 1.2f;
  sequence.submission =
      std::make_shared<const Submission>(Submission{.id = 1, .request = request, .on_token = {}});
  sequence.max_length = kMaxRowAdjustments - 1;
  EXPECT_FALSE(sequence.samples_on_host());
  sequence.max_length = kMaxRowAdjustments;
  EXPECT_TRUE(sequence.samples_on_host());
}

TEST(DeviceSampling, Soak) {
  testing::SoakOptions how;
  how.requests = std::min(how.requests, 50);
  how.wrap_runner = sampling(testing::data("models/fable-llama-relu-8m"));
  testing::soak(how);
}

}  // namespace
}  // namespace sparsellm
