#include "tests/engine/engine_gpu_fixture.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <random>

#include "kernels/base/device.h"
#include "tests/testing/gpu_context.h"

namespace sparsellm::testing {
namespace {

void expect_log_probs(const std::vector<TokenLogProbs>& got,
                      const std::vector<TokenLogProbs>& expected, float tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  const auto expect_one = [&](const TokenLogProb& one, const TokenLogProb& other) {
    EXPECT_EQ(one.token, other.token);
    EXPECT_NEAR(one.log_prob, other.log_prob, tolerance);
  };
  for (size_t i = 0; i < got.size(); ++i) {
    expect_one(got[i].token, expected[i].token);
    ASSERT_EQ(got[i].top.size(), expected[i].top.size());
    for (size_t place = 0; place < got[i].top.size(); ++place) {
      expect_one(got[i].top[place], expected[i].top[place]);
    }
  }
}

}  // namespace

void GpuEngine::SetUp() {
  if (cuda_device_count() == 0) {
    GTEST_SKIP() << "there is no CUDA device";
  }
}

std::string checkpoint_name(const ::testing::TestParamInfo<std::filesystem::path>& test) {
  std::string name = test.param.filename().string();
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

EngineOptions on_gpu() {
  EngineOptions options;
  options.device = kGpu;
  options.max_requests = 8;
  options.with_tokenizer = false;
  return options;
}

std::vector<Request> requests_of(const Engine& engine, int64_t count) {
  std::mt19937 random(7);
  std::vector<Request> requests(static_cast<size_t>(count));
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    const int64_t length = 1 + static_cast<int64_t>(random() % 70);
    for (int64_t j = 0; j < length; ++j) {
      request.prompt.push_back(
          static_cast<int32_t>(random() % static_cast<unsigned>(engine.config().vocab_size)));
    }
    request.max_tokens = 20 + static_cast<int64_t>(random() % 30);
    request.seed = i;
    request.ignore_eos = i % 3 != 0;
    if (i % 2 == 1) {
      request.sampling = {.temperature = 0.9f, .top_k = 40, .top_p = 0.95f};
    }
    request.log_probs = i % 5 == 4 ? std::optional<int32_t>(2) : std::nullopt;
    request.prompt_log_probs = i % 10 == 9;
    if (i % 4 == 2 || i % 7 == 5) {
      request.sampling.repetition_penalty = 1.2f;
      request.sampling.frequency_penalty = 0.3f;
      request.sampling.presence_penalty = -0.1f;
    }
    if (i % 6 >= 4) {
      request.sampling.logit_bias = {
          {.token = request.prompt[0], .bias = 1.5f},
          {.token = static_cast<int32_t>(engine.config().vocab_size - 1) -
                    (request.prompt[0] == engine.config().vocab_size - 1 ? 1 : 0),
           .bias = -std::numeric_limits<float>::infinity()}};
    }
  }
  return requests;
}

void expect_same(const Completion& got, const Completion& expected) {
  EXPECT_EQ(got.error, "");
  EXPECT_EQ(got.tokens, expected.tokens);
  EXPECT_EQ(got.finish, expected.finish);
  expect_log_probs(got.log_probs, expected.log_probs, 0.0f);
  expect_log_probs(got.prompt_log_probs, expected.prompt_log_probs, 0.0f);
}

void expect_near_host(const Completion& on_device, const Completion& on_host) {
  EXPECT_EQ(on_device.error, "");
  EXPECT_EQ(on_device.tokens, on_host.tokens);
  EXPECT_EQ(on_device.finish, on_host.finish);
  constexpr float kTolerance = 1e-5f;
  expect_log_probs(on_device.log_probs, on_host.log_probs, kTolerance);
  expect_log_probs(on_device.prompt_log_probs, on_host.prompt_log_probs, kTolerance);
}

}  // namespace sparsellm::testing
