#include "tools/serve/completion_request.h"

#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>

#include <string>
#include <vector>

#include "tests/testing/byte_tokenizer.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using Ids = std::vector<int32_t>;
using testing::ByteTokenizer;
using testing::throws_error;

class MakeCompletion : public ::testing::Test {
 protected:
  CompletionRequest make(const std::string& fields) const {
    return make_completion(context_, "{" + fields + "}");
  }
  ::testing::AssertionResult refuses(const std::string& fields, std::string_view why) const {
    return throws_error([&] { make(fields); }, why);
  }
  // As many prompts of one byte.
  static std::string prompts(int count) {
    std::string text = R"("prompt": ["a")";
    for (int i = 1; i < count; ++i) {
      text += R"(, "a")";
    }
    return text + "]";
  }

  ByteTokenizer tokenizer_;
  CompletionContext context_{
      .tokenizer = tokenizer_, .context_size = 64, .model = "m", .defaults = defaults()};

 private:
  static Prompt defaults() {
    Prompt prompt;
    prompt.request.max_tokens = 16;
    return prompt;
  }
};

TEST_F(MakeCompletion, APromptBecomesARequest) {
  const CompletionRequest made = make(R"("prompt": ["ab", [2, 3, 4]], "n": 3, "logprobs": 1)");
  ASSERT_EQ(made.requests.size(), 2u);
  EXPECT_EQ(made.requests[0].prompt, (Ids{0, 'a' + 2, 'b' + 2}));
  EXPECT_EQ(made.requests[1].prompt, (Ids{2, 3, 4}));
  EXPECT_EQ(made.samples, 6);
  EXPECT_EQ(made.format.samples, 3);
  EXPECT_EQ(made.format.prompt_tokens, 6);
  EXPECT_EQ(made.format.log_probs, 1);
  EXPECT_TRUE(made.format.echoes.empty());
  EXPECT_FALSE(made.requests[0].prompt_log_probs);
  EXPECT_EQ(make(R"("prompt": "ab", "add_special_tokens": false)").requests[0].prompt.size(), 2u);
}

TEST_F(MakeCompletion, ControlTokensInATextAreText) {
  EXPECT_EQ(make(R"("prompt": "<s>")").requests[0].prompt, (Ids{0, '<' + 2, 's' + 2, '>' + 2}));
}

TEST_F(MakeCompletion, EchoesWhatWasSent) {
  const CompletionRequest made =
      make(R"("prompt": ["ab", [0, 99, 1]], "echo": true, "skip_special_tokens": false)");
  ASSERT_EQ(made.format.echoes.size(), 2u);
  EXPECT_EQ(made.format.echoes[0].text, "ab");
  EXPECT_FALSE(made.format.echoes[0].has_special_tokens);
  EXPECT_EQ(made.format.echoes[1].text, "<s>a</s>");
  EXPECT_TRUE(made.format.echoes[1].has_special_tokens);
  EXPECT_TRUE(made.format.echoes[0].tokens.empty());  // without logprobs
  const CompletionRequest scored = make(R"("prompt": "ab", "echo": true, "logprobs": 0)");
  EXPECT_EQ(scored.format.echoes[0].tokens, scored.requests[0].prompt);
  EXPECT_TRUE(scored.requests[0].prompt_log_probs);
}

TEST_F(MakeCompletion, AnotherModelIsUnknown) {
  EXPECT_NO_THROW(make(R"("prompt": "a", "model": "m")"));
  EXPECT_THROW(make(R"("prompt": "a", "model": "M")"), UnknownModel);
  EXPECT_TRUE(refuses(R"("prompt": "a", "model": "x\ny")", "does not exist; \"m\" does"));
}

// What can never fit is not worth a second try.
TEST_F(MakeCompletion, TheContextLimitsPromptAndContinuation) {
  const auto body = [](size_t bytes, const std::string& more) {
    return R"("prompt": ")" + std::string(bytes, 'x') + "\"" + more;
  };
  EXPECT_NO_THROW(make(body(62, "")));  // with BOS one is left: the default is cut
  EXPECT_TRUE(refuses(body(63, ""), "the prompt has 64 tokens"));
  EXPECT_TRUE(refuses(body(64, ""), "the prompt has 65 tokens"));
  EXPECT_TRUE(refuses(body(100'000, ""), "the prompt has 100000 bytes"));
  EXPECT_NO_THROW(make(body(63, R"(, "max_tokens": 0)")));
  EXPECT_NO_THROW(make(body(53, R"(, "max_tokens": 10)")));
  EXPECT_TRUE(refuses(body(54, R"(, "max_tokens": 10)"),
                      "the prompt has 55 tokens, and 10 are asked for; the context holds 64"));
  EXPECT_TRUE(refuses(R"("prompt": [5], "max_tokens": 1099511627776)", "the context holds 64"));
  std::string ids = R"("prompt": [5)";
  for (int i = 1; i < 64; ++i) {
    ids += ", 5";
  }
  EXPECT_TRUE(refuses(ids + "]", "the prompt has 64 tokens"));
  EXPECT_NO_THROW(make(ids + R"(], "max_tokens": 0)"));
  EXPECT_TRUE(refuses(ids + R"(, 5], "max_tokens": 0)", "the prompt has 65 tokens"));
}

TEST_F(MakeCompletion, ContinuationsAreLimitedInAll) {
  context_.max_samples = 10;
  EXPECT_EQ(make(prompts(5) + R"(, "n": 2)").samples, 10);
  EXPECT_TRUE(refuses(prompts(5) + R"(, "n": 3)",
                      "5 prompts with n 3 are 15 continuations; use at most 10 in all"));
  EXPECT_TRUE(refuses(prompts(11), "11 continuations"));
}

// Every prompt has its own copy.
TEST_F(MakeCompletion, CopiesOfBiasesAndStopsAreLimitedInAll) {
  std::string bias = R"("logit_bias": {"0": 1)";
  for (int i = 1; i < 4096; ++i) {
    bias += fmt::format(R"(,"{}":1)", i);
  }
  bias += "}";
  EXPECT_EQ(make(prompts(512) + "," + bias).requests[511].sampling.logit_bias.size(), 4096u);
  EXPECT_TRUE(refuses(prompts(513) + "," + bias,
                      "of 513 prompts take 16809984 bytes; use at most 16777216"));
  std::string stops = R"("stop": [)";
  for (int i = 0; i < 64; ++i) {
    stops += (i > 0 ? ",\"" : "\"") + std::string(1024, 'x') + "\"";
  }
  EXPECT_NO_THROW(make(prompts(200) + "," + stops + "]"));
  EXPECT_TRUE(refuses(prompts(1000) + "," + stops + "]", "of 1000 prompts take "));
}

TEST_F(MakeCompletion, LogProbsOfAllPromptsAreLimited) {
  context_.context_size = 4096;
  const std::string scored = R"(, "logprobs": 100, "max_tokens": 100)";
  EXPECT_NO_THROW(make(prompts(400) + scored));
  EXPECT_TRUE(refuses(prompts(420) + scored, "more than 4194304 log-probabilities"));
}

// Each continuation repeats them.
TEST_F(MakeCompletion, EchoedLogProbsCountForEachContinuation) {
  context_.context_size = 4096;
  const std::string scored = R"("prompt": ")" + std::string(999, 'x') +
                             R"(", "echo": true, "max_tokens": 0, "logprobs": 99, "n": )";
  EXPECT_NO_THROW(make(scored + "41"));
  EXPECT_TRUE(refuses(scored + "42", "more than 4194304 log-probabilities"));
  EXPECT_TRUE(refuses(scored + "1024", "more than 4194304 log-probabilities"));
}

TEST_F(MakeCompletion, EchoedTextsAreLimitedInAll) {
  context_.context_size = 1 << 20;
  const std::string echo = R"("prompt": ")" + std::string(1 << 18, 'x') + R"(", "echo": true)";
  EXPECT_NO_THROW(make(echo + R"(, "n": 256)"));
  EXPECT_TRUE(refuses(echo + R"(, "n": 257)", "more than 67108864 bytes"));
}

TEST_F(MakeCompletion, SaysHowMuchMemoryItTakes) {
  const int64_t small = make(R"("prompt": "a")").bytes;
  EXPECT_LT(small, 100);
  EXPECT_GE(make(R"("prompt": "a", "logprobs": 99, "max_tokens": 10)").bytes, 10 * 100 * 60);
  EXPECT_GE(make(R"("prompt": "abcd", "echo": true, "n": 100)").bytes, 400);
}

}  // namespace
}  // namespace sparsellm
