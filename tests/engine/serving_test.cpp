// What a request may ask for, through Engine::submit and step.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "kernels/base/error.h"
#include "models/shard.h"
#include "tests/testing/paths.h"
#include "tests/testing/reference.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

const char kLlama[] = "models/fable-llama-relu-8m";

// By the number of ranks.
class Serving : public ::testing::TestWithParam<int> {
 protected:
  static EngineOptions on_ranks() {
    EngineOptions options;
    options.tensor_parallel.degree = GetParam();
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Serving, ::testing::Values(1, 2));

Request story(const Engine& engine, int64_t max_tokens = 40) {
  Request request;
  request.prompt = engine.tokenizer().encode("Once upon a time there was a king", {});
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

Completion run(Engine& engine, const Request& request) {
  return engine.generate({request}).front();
}

TEST_P(Serving, StopTexts) {
  Engine engine = Engine::load(testing::data(kLlama), on_ranks());
  const std::string free_text = run(engine, story(engine)).text;
  ASSERT_GT(free_text.size(), 60u);
  struct Case {
    std::vector<std::string> stop;
    size_t end;  // of the text that is left
  };
  std::vector<Case> cases;
  // Wherever a stop text begins and ends, inside tokens or across them.
  for (size_t begin = 1; begin < 40; begin += testing::kSanitized ? 11 : 3) {
    for (size_t length : {1, 2, 5, 17}) {
      const std::string stop = free_text.substr(begin, length);
      cases.push_back({{stop}, free_text.find(stop)});
    }
  }
  cases.push_back(
      {{"not in the text", free_text.substr(30, 8)}, free_text.find(free_text.substr(30, 8))});
  for (const Case& c : cases) {
    Request request = story(engine);
    request.stop = c.stop;
    const Completion done = run(engine, request);
    EXPECT_EQ(done.text, free_text.substr(0, c.end)) << c.stop.back();
    EXPECT_EQ(done.finish, FinishReason::stop) << c.stop.back();
    EXPECT_LE(done.tokens.size(), 40u);
  }
  Request request = story(engine);
  request.stop = {"never said"};
  EXPECT_EQ(run(engine, request).text, free_text);
  EXPECT_EQ(run(engine, request).finish, FinishReason::length);
}

TEST_P(Serving, StopTokens) {
  Engine engine = Engine::load(testing::data(kLlama), on_ranks());
  const Completion plain = run(engine, story(engine));
  Request request = story(engine);
  request.stop_token_ids = {plain.tokens[9], 4000};
  const Completion done = run(engine, request);
  const auto first = std::find(plain.tokens.begin(), plain.tokens.end(), plain.tokens[9]);
  EXPECT_EQ(done.tokens, std::vector<int32_t>(plain.tokens.begin(), first + 1));
  EXPECT_EQ(done.finish, FinishReason::stop);
  Request shorter = story(engine, first - plain.tokens.begin());
  EXPECT_EQ(done.text, run(engine, shorter).text);  // that of the stop token is not shown
}

TEST_P(Serving, PenaltiesAndBiasReachTheSampler) {
  Engine engine = Engine::load(testing::data(kLlama), on_ranks());
  const auto distinct = [](std::vector<int32_t> tokens) {
    std::sort(tokens.begin(), tokens.end());
    return std::unique(tokens.begin(), tokens.end()) - tokens.begin();
  };
  const int64_t plain = distinct(run(engine, story(engine)).tokens);
  Request request = story(engine);
  request.sampling.presence_penalty = 100.0f;  // nothing comes twice
  EXPECT_EQ(distinct(run(engine, request).tokens), 40);
  EXPECT_LT(plain, 40);
  request = story(engine);
  request.sampling.repetition_penalty = 1.3f;
  EXPECT_GT(distinct(run(engine, request).tokens), plain);
  request = story(engine);
  request.sampling.logit_bias = {{.token = 300, .bias = 1000.0f}};
  EXPECT_EQ(run(engine, request).tokens, std::vector<int32_t>(40, 300));
  // The penalties count the prompt's tokens only where they should.
  request = story(engine, 1);
  request.sampling.logit_bias = {{.token = request.prompt[2], .bias = 50.0f}};
  request.sampling.presence_penalty = 100.0f;
  EXPECT_EQ(run(engine, request).tokens.front(), request.prompt[2]);
  request.sampling.repetition_penalty = 100.0f;
  EXPECT_NE(run(engine, request).tokens.front(), request.prompt[2]);
}

TEST_P(Serving, LogProbabilitiesAreThoseOfTheReference) {
  for (const std::filesystem::path& directory : testing::all_checkpoints()) {
    if (!why_not_shared(read_model_config(directory), GetParam()).empty()) {
      continue;
    }
    EngineOptions options = on_ranks();
    options.with_tokenizer = false;
    Engine engine = Engine::load(directory, options);
    for (const testing::Reference::Greedy& greedy : testing::read_reference(directory).greedy) {
      Request request;
      request.prompt = greedy.ids;
      request.max_tokens = 1;
      request.log_probs = 5;
      const Completion done = run(engine, request);
      ASSERT_EQ(done.log_probs.size(), 1u);
      const TokenLogProbs& got = done.log_probs.front();
      ASSERT_EQ(got.top.size(), 5u);
      EXPECT_EQ(got.token.token, greedy.top5_ids.front());
      EXPECT_EQ(got.token.log_prob, got.top.front().log_prob);
      double normaliser = got.top.front().log_prob * -1.0 + greedy.top5_logits.front();
      if (!greedy.last_logits.empty()) {
        double total = 0.0;
        for (float logit : greedy.last_logits) {
          total += std::exp(static_cast<double>(logit));
        }
        normaliser = std::log(total);
      }
      for (size_t i = 0; i < 5; ++i) {
        EXPECT_EQ(got.top[i].token, greedy.top5_ids[i]);
        EXPECT_NEAR(got.top[i].log_prob, greedy.top5_logits[i] - normaliser, 0.01) << directory;
      }
    }
  }
}

TEST_P(Serving, LogProbabilitiesOfThePrompt) {
  EngineOptions options = on_ranks();
  options.step_tokens = 32;
  Engine engine = Engine::load(testing::data(kLlama), options);
  Request request = story(engine, 6);
  // The continuation of one request, scored as the prompt of another.
  request.log_probs = 2;
  request.prompt_log_probs = true;
  const Completion first = run(engine, request);
  ASSERT_EQ(first.prompt_log_probs.size(), request.prompt.size() - 1);
  Request whole = request;
  whole.prompt.insert(whole.prompt.end(), first.tokens.begin(), first.tokens.end());
  whole.max_tokens = 0;
  const Completion scored = run(engine, whole);
  EXPECT_EQ(scored.tokens.size(), 0u);
  EXPECT_EQ(scored.finish, FinishReason::length);
  std::vector<TokenLogProbs> expected = first.prompt_log_probs;
  expected.insert(expected.end(), first.log_probs.begin(), first.log_probs.end());
  ASSERT_EQ(scored.prompt_log_probs.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(scored.prompt_log_probs[i].token.token, whole.prompt[i + 1]);
    EXPECT_EQ(scored.prompt_log_probs[i].token.log_prob, expected[i].token.log_prob);
    ASSERT_EQ(scored.prompt_log_probs[i].top.size(), 2u);
    EXPECT_EQ(scored.prompt_log_probs[i].top[1].log_prob, expected[i].top[1].log_prob);
  }
}

TEST_P(Serving, SamplesAreIndependentAndShareThePrompt) {
  for (int64_t step_tokens : {2048, 33}) {
    EngineOptions options = on_ranks();
    options.step_tokens = step_tokens;
    Engine engine = Engine::load(testing::data(kLlama), options);
    Request request = story(engine, 12);
    while (request.prompt.size() < 70) {
      request.prompt.push_back(static_cast<int32_t>(300 + request.prompt.size()));
    }
    request.sampling.temperature = 1.0f;
    request.seed = 77;
    Request many = request;
    many.samples = 4;
    const std::vector<Completion> done = engine.generate({request, many, request});
    ASSERT_EQ(done.size(), 6u);
    EXPECT_EQ(engine.stats().shared_tokens, 3 * 64);
    for (int32_t sample = 0; sample < 4; ++sample) {
      const Completion& own = done[1 + static_cast<size_t>(sample)];
      EXPECT_EQ(own.request, 1u);
      EXPECT_EQ(own.sample, sample);
      Request solo = request;
      solo.seed = sample_seed(77, sample);
      EXPECT_EQ(own.tokens, run(engine, solo).tokens);
    }
    EXPECT_EQ(done[0].tokens, done[1].tokens);
    EXPECT_NE(done[1].tokens, done[2].tokens);
    EXPECT_NE(done[2].tokens, done[3].tokens);
    EXPECT_EQ(engine.free_pages(), engine.total_pages());
  }
}

TEST_P(Serving, CancelEndsAllSamples) {
  Engine engine = Engine::load(testing::data(kLlama), on_ranks());
  Request request = story(engine);
  request.samples = 3;
  int finished = 0;
  const int64_t id = engine.submit(request, [&](const TokenEvent& event) {
    if (event.finish) {
      EXPECT_EQ(*event.finish, FinishReason::cancelled);
      ++finished;
    }
  });
  engine.step();
  engine.step();
  engine.cancel(id);
  EXPECT_EQ(finished, 3);
  EXPECT_FALSE(engine.step());
  EXPECT_EQ(engine.free_pages(), engine.total_pages());
}

TEST_P(Serving, AFailingRequestLeavesTheOthersAlone) {
  for (int steps_ahead : {0, 1}) {
    EngineOptions options = on_ranks();
    options.steps_ahead = steps_ahead;
    Engine engine = Engine::load(testing::data(kLlama), options);
    const Completion expected = run(engine, story(engine));
    Request throwing = story(engine);
    throwing.on_logits = [](int64_t position, std::span<const float>) {
      if (position > 12) {
        throw Error("the listener went away");
      }
    };
    Request too_long = story(engine);
    too_long.prompt.resize(5000, 5);
    const std::vector<Completion> done =
        engine.generate({story(engine), throwing, too_long, story(engine)});
    EXPECT_EQ(done[0].tokens, expected.tokens);
    EXPECT_EQ(done[1].error, "the listener went away");
    EXPECT_NE(done[2].error.find("the prompt has 5000 tokens"), std::string::npos);
    EXPECT_EQ(done[3].text, expected.text);
    EXPECT_EQ(engine.free_pages(), engine.total_pages());
  }
}

TEST_P(Serving, RefusesWhatCannotBe) {
  EngineOptions options = on_ranks();
  options.kv_tokens = 512;
  Engine engine = Engine::load(testing::data(kLlama), options);
  struct Case {
    std::string expected;
    std::function<void(Request&)> change;
  };
  const std::vector<Case> cases{
      {"does not fit the KV cache of 512", [](Request& r) { r.max_tokens = 600; }},
      {"0 samples", [](Request& r) { r.samples = 0; }},
      {"2000 samples", [](Request& r) { r.samples = 2000; }},
      {"a stop text is empty",
       [](Request& r) {
         r.stop = {"a", ""};
       }},
      {"a stop text has 5000 bytes", [](Request& r) { r.stop = {std::string(5000, 'x')}; }},
      {"UTF-8", [](Request& r) { r.stop = {"\xff"}; }},
      {"100 stop texts", [](Request& r) { r.stop.assign(100, "x"); }},
      {"stop token id 9999", [](Request& r) { r.stop_token_ids = {9999}; }},
      {"a logit bias -1",
       [](Request& r) {
         r.sampling.logit_bias = {{-1, 1.0f}};
       }},
      {"repetition_penalty 0", [](Request& r) { r.sampling.repetition_penalty = 0.0f; }},
      {"presence_penalty nan", [](Request& r) { r.sampling.presence_penalty = std::nanf(""); }},
      {"-1 log-probabilities", [](Request& r) { r.log_probs = -1; }},
      {"101 log-probabilities", [](Request& r) { r.log_probs = 101; }},
      {"of the prompt alone", [](Request& r) { r.prompt_log_probs = true; }},
      {"single sample",
       [](Request& r) {
         r.samples = 2;
         r.on_logits = [](int64_t, std::span<const float>) {};
       }},
  };
  for (const Case& c : cases) {
    Request request = story(engine, 4);
    c.change(request);
    const Completion done = run(engine, request);
    EXPECT_EQ(done.finish, FinishReason::error) << c.expected;
    EXPECT_NE(done.error.find(c.expected), std::string::npos) << done.error;
  }
  EXPECT_EQ(run(engine, story(engine, 4)).error, "");
}

// The lowest and the highest that is allowed, and what is one beyond.
TEST_P(Serving, TakesWhatJustCanBe) {
  EngineOptions options = on_ranks();
  options.context_size = 64;
  const Engine engine = Engine::load(testing::data(kLlama), options);
  const auto vocab = static_cast<int32_t>(engine.config().vocab_size);
  const auto on_logits = [](int64_t, std::span<const float>) {};
  using Change = std::function<void(Request&)>;
  const std::vector<Change> good{
      [](Request& r) { r.max_tokens = -1; },
      [](Request& r) { r.max_tokens = 0; },
      [](Request& r) { r.samples = 1; },
      [](Request& r) { r.samples = 1024; },
      [](Request& r) { r.log_probs = 0; },
      [](Request& r) { r.log_probs = 100; },
      [&](Request& r) {
        r.stop_token_ids = {0, vocab - 1};
      },
      [](Request& r) { r.stop_token_ids.assign(1024, 7); },
      [&](Request& r) {
        r.sampling.logit_bias = {{0, 1.0f}, {vocab - 1, 1.0f}};
      },
      [](Request& r) { r.stop.assign(64, "x"); },
      [](Request& r) { r.stop = {std::string(1024, 'x')}; },
      [&](Request& r) { r.on_logits = on_logits; },
      [&](Request& r) {
        r.on_logits = on_logits;
        r.score_prompt = true;
      },
  };
  for (const Change& change : good) {
    Request request = story(engine, 4);
    change(request);
    EXPECT_NO_THROW(engine.check(request)) << &change - good.data();
  }
  const std::vector<std::pair<std::string, Change>> bad{
      {"max_tokens -2", [](Request& r) { r.max_tokens = -2; }},
      {"1025 samples", [](Request& r) { r.samples = 1025; }},
      {"stop token id -1", [](Request& r) { r.stop_token_ids = {-1}; }},
      {"stop token id 4096",
       [&](Request& r) {
         r.stop_token_ids = {0, vocab};
       }},
      {"1025 stop tokens", [](Request& r) { r.stop_token_ids.assign(1025, 7); }},
      {"a logit bias 4096",
       [&](Request& r) {
         r.sampling.logit_bias = {{vocab, 1.0f}};
       }},
      {"65 stop texts", [](Request& r) { r.stop.assign(65, "x"); }},
      {"a stop text has 1025 bytes",
       [](Request& r) {
         r.stop = {"x", std::string(1025, 'x')};
       }},
      {"score_prompt needs on_logits", [](Request& r) { r.score_prompt = true; }},
  };
  for (const auto& [message, change] : bad) {
    Request request = story(engine, 4);
    change(request);
    EXPECT_TRUE(testing::throws_error([&] { engine.check(request); }, message));
  }
}

// The lowest and the highest id, in prompts that just fit.
TEST_P(Serving, TheFirstAndTheLastToken) {
  EngineOptions options = on_ranks();
  options.context_size = 33;
  options.kv_tokens = 48;
  Engine engine = Engine::load(testing::data(kLlama), options);
  const auto vocab = static_cast<int32_t>(engine.config().vocab_size);
  Request request = story(engine, 1);
  request.prompt.assign(32, 0);
  request.prompt.back() = vocab - 1;
  request.sampling.temperature = 0.0f;
  for (int32_t id : {0, vocab - 1}) {
    request.sampling.logit_bias = {{id, 1e6f}};
    const Completion done = run(engine, request);
    EXPECT_EQ(done.error, "");
    EXPECT_EQ(done.tokens, std::vector<int32_t>{id});
  }
  request.prompt.push_back(5);
  EXPECT_NE(run(engine, request).error.find("the prompt has 33 tokens, but the context holds 33 "),
            std::string::npos);
  request.max_tokens = 0;
  EXPECT_EQ(run(engine, request).error, "");
  // As long as the KV cache, in a context that is longer.
  options.context_size = 64;
  Engine small = Engine::load(testing::data(kLlama), options);
  request.prompt.assign(32, 5);
  request.max_tokens = 16;
  EXPECT_EQ(run(small, request).tokens.size(), 16u);
  request.max_tokens = 17;
  EXPECT_NE(run(small, request).error.find("up to 49 tokens does not fit the KV cache of 48"),
            std::string::npos);
}

TEST_P(Serving, StopTextsNeedATokenizer) {
  EngineOptions options = on_ranks();
  options.with_tokenizer = false;
  Engine engine = Engine::load(testing::data(kLlama), options);
  Request request;
  request.prompt = {1};
  request.stop = {"x"};
  EXPECT_NE(run(engine, request).error.find("tokenizer"), std::string::npos);
}

}  // namespace
}  // namespace sparsellm
