#include "tests/engine/check_greedy.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "models/weights/random_weights.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm::testing {
namespace {

constexpr int64_t kVocabulary = 24;
constexpr double kTolerance = 1e-4;

// Without eos_token_id, token 2 is a Llama's EOS.
Engine random_engine() {
  const TempDir folder;
  const nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
                                 {"model_type", "llama"},
                                 {"hidden_act", "silu"},
                                 {"hidden_size", 64},
                                 {"intermediate_size", 96},
                                 {"num_hidden_layers", 1},
                                 {"num_attention_heads", 1},
                                 {"num_key_value_heads", 1},
                                 {"max_position_embeddings", 64},
                                 {"rms_norm_eps", 1e-5},
                                 {"tie_word_embeddings", true},
                                 {"vocab_size", kVocabulary}};
  std::ofstream(folder.path() / "config.json") << config.dump();
  EngineOptions options;
  options.threads = 1;
  return Engine::load_random(folder.path() / "config.json", {}, options);
}

Request greedy(std::vector<int32_t> prompt, bool ignore_eos) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0.0f;
  request.max_tokens = 3;
  request.ignore_eos = ignore_eos;
  return request;
}

// Every prompt of two tokens: after some of them EOS is the likeliest.
std::vector<std::vector<int32_t>> prompts() {
  std::vector<std::vector<int32_t>> all;
  for (int32_t first = 0; first < kVocabulary; ++first) {
    for (int32_t second = 0; second < kVocabulary; ++second) {
      all.push_back({first, second});
    }
  }
  return all;
}

TEST(CheckGreedy, AcceptsWhatTheReferenceItselfChooses) {
  Engine engine = random_engine();
  int64_t without_eos = 0;  // where EOS has the largest logit, and is not chosen
  for (const std::vector<int32_t>& prompt : prompts()) {
    const Completion stopped = engine.generate({greedy(prompt, false)}).front();
    EXPECT_EQ(check_greedy(engine, greedy(prompt, false), stopped.tokens, kTolerance), "");
    const Completion whole = engine.generate({greedy(prompt, true)}).front();
    EXPECT_EQ(check_greedy(engine, greedy(prompt, true), whole.tokens, kTolerance), "");
    without_eos += stopped.tokens.back() == engine.config().eos_token_ids.front() ? 1 : 0;
  }
  EXPECT_GT(without_eos, 0);
}

TEST(CheckGreedy, FindsAnyOtherToken) {
  Engine engine = random_engine();
  for (const bool ignore_eos : {false, true}) {
    const Request request = greedy({5, 7, 11}, ignore_eos);
    const std::vector<int32_t> right = engine.generate({request}).front().tokens;
    ASSERT_EQ(right.size(), 3);
    for (size_t i = 0; i < right.size(); ++i) {
      for (int32_t other = 0; other < kVocabulary; ++other) {
        std::vector<int32_t> tokens = right;
        tokens[i] = other;
        EXPECT_EQ(check_greedy(engine, request, tokens, kTolerance).empty(), other == right[i])
            << other << " at " << i;
        EXPECT_EQ(
            check_greedy(engine, request, tokens, kTolerance).find("EOS") != std::string::npos,
            ignore_eos && other == 2);
      }
    }
  }
}

TEST(CheckGreedy, CountsTheTokens) {
  Engine engine = random_engine();
  const Request request = greedy({5, 7, 11}, true);
  std::vector<int32_t> tokens = engine.generate({request}).front().tokens;
  EXPECT_EQ(check_greedy(engine, request, {}, kTolerance), "0 tokens instead of 3");
  tokens.push_back(tokens.back());
  EXPECT_EQ(check_greedy(engine, request, tokens, kTolerance), "4 tokens instead of 3");
}

}  // namespace
}  // namespace sparsellm::testing
