#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace sparsellm::testing {

// A checkpoint on the first CUDA device. Skips where there is none.
class GpuEngine : public ::testing::TestWithParam<std::filesystem::path> {
 protected:
  void SetUp() override;
};

// The name of its folder, of letters that the name of a test may have.
std::string checkpoint_name(const ::testing::TestParamInfo<std::filesystem::path>& test);

// 8 requests, without a tokenizer.
EngineOptions on_gpu();

// Random prompts, greedy and sampled, some with penalties, biases or log-probabilities, also of the
// prompt. The same ones every time.
std::vector<Request> requests_of(const Engine& engine, int64_t count);

// The same tokens, reason to finish and log-probabilities, and no error.
void expect_same(const Completion& got, const Completion& expected);
// The same, except that the log-probabilities of a host are only near to those of a device.
void expect_near_host(const Completion& on_device, const Completion& on_host);

}  // namespace sparsellm::testing
