#include "tests/engine/infinite_logits.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tests/engine/changed_model.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm::testing {
namespace {

namespace fs = std::filesystem;

constexpr uint16_t kHalfInfinity = 0x7c00;
constexpr uint16_t kHalfNan = 0x7e00;
constexpr int64_t kToken = 357;  // not in the prompt

// A model with an element of kToken's row of lm_head replaced: its logit becomes NaN or an
// infinity, and no other one does.
fs::path damaged_model(const TempDir& folder, uint16_t value, int64_t column) {
  constexpr int64_t kHidden = 24;
  return changed_model(folder, data("tiny/llama_gelu_tanh"), "lm_head.weight",
                       kToken * kHidden + column, {&value, 1});
}

Request request_of(float temperature) {
  Request request;
  request.prompt = {1, 20, 30, 40};
  request.max_tokens = 4;
  request.ignore_eos = true;
  request.sampling.temperature = temperature;
  return request;
}

// By name; each uses logits in another place.
std::vector<std::pair<std::string, Request>> all_requests() {
  std::vector<std::pair<std::string, Request>> requests;
  requests.emplace_back("greedy", request_of(0.0f));
  requests.emplace_back("drawn", request_of(1.0f));
  requests.emplace_back("top_k 1", request_of(1.0f));
  requests.back().second.sampling.top_k = 1;
  requests.emplace_back("three samples", request_of(0.8f));
  requests.back().second.samples = 3;
  requests.emplace_back("a penalty", request_of(0.0f));
  requests.back().second.sampling.repetition_penalty = 1.5f;
  requests.emplace_back("the token is forbidden", request_of(0.0f));
  requests.back().second.sampling.logit_bias = {
      {static_cast<int32_t>(kToken), -std::numeric_limits<float>::infinity()}};
  requests.emplace_back("log-probabilities", request_of(0.0f));
  requests.back().second.log_probs = 2;
  requests.emplace_back("log-probabilities of the prompt", request_of(0.0f));
  requests.back().second.log_probs = 0;
  requests.back().second.prompt_log_probs = true;
  requests.emplace_back("shown logits", request_of(0.0f));
  requests.back().second.on_logits = [](int64_t, std::span<const float>) { ADD_FAILURE(); };
  requests.emplace_back("a scored prompt", requests.back().second);
  requests.back().second.score_prompt = true;
  requests.back().second.max_tokens = 0;
  return requests;
}

}  // namespace

void expect_infinite_logits_are_errors(Device device) {
  EngineOptions options;
  options.device = device;
  options.with_tokenizer = false;
  for (const auto& [value, column] : {std::pair<uint16_t, int64_t>{kHalfInfinity, 0},
                                      {kHalfInfinity | 0x8000, 0},  // one of these two is positive
                                      {kHalfNan, 7}}) {
    const TempDir folder;
    Engine engine = Engine::load(damaged_model(folder, value, column), options);
    for (const auto& [name, request] : all_requests()) {
      for (const Completion& sample : engine.generate({request})) {
        EXPECT_EQ(sample.finish, FinishReason::error) << name << ", " << value;
        EXPECT_NE(sample.error.find("logits contain NaN or infinity"), std::string::npos)
            << name << ", " << value << ": " << sample.error;
        EXPECT_TRUE(sample.tokens.empty()) << name << ", " << value;
        EXPECT_TRUE(sample.log_probs.empty() && sample.prompt_log_probs.empty()) << name;
      }
    }
  }
}

}  // namespace sparsellm::testing
