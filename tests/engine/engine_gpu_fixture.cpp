#include "tests/engine/engine_gpu_fixture.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <random>

#include "kernels/base/device.h"
#include "tests/testing/gpu_context.h"

namespace sparsellm::testing {

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
  }
  return requests;
}

void expect_same(const Completion& got, const Completion& expected) {
  EXPECT_EQ(got.error, "");
  EXPECT_EQ(got.tokens, expected.tokens);
  EXPECT_EQ(got.finish, expected.finish);
  ASSERT_EQ(got.log_probs.size(), expected.log_probs.size());
  for (size_t i = 0; i < got.log_probs.size(); ++i) {
    EXPECT_EQ(got.log_probs[i].token.log_prob, expected.log_probs[i].token.log_prob);
  }
}

}  // namespace sparsellm::testing
