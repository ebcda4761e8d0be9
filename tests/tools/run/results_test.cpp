#include "tools/run/results.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

class Letters final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options) const override {
    std::vector<int32_t> ids(options.add_special_tokens ? 1 : 0, 0);
    ids.insert(ids.end(), text.begin(), text.end());
    return ids;
  }
  std::string token_bytes(int32_t id, bool show_special) const override {
    return id == 0 ? (show_special ? "<s>" : "") : std::string(1, static_cast<char>(id));
  }
  bool strips_leading_space() const override { return false; }
  int64_t vocab_size() const override { return 256; }
  std::optional<int32_t> bos_id() const override { return 0; }
  std::optional<int32_t> eos_id() const override { return {}; }
};

TokenEvent text_event(int32_t sample, char letter, std::optional<FinishReason> finish = {}) {
  static constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz";
  return {.sample = sample,
          .token = letter,
          .text = kLetters.substr(static_cast<size_t>(letter - 'a'), 1),
          .finish = finish};
}

TEST(Results, OneSample) {
  Results results(1);
  results.add(text_event(0, 'a'));
  EXPECT_FALSE(results.finished());
  results.add({.token = 7});
  results.add({.text = "\xc3\xb6\n", .finish = FinishReason::stop});
  EXPECT_TRUE(results.finished());
  EXPECT_EQ(results.error(), "");
  const Letters letters;
  EXPECT_EQ(result_json("\"x\"", letters, {}, results),
            "{\"id\":\"x\",\"text\":\"a\xc3\xb6\\n\",\"token_ids\":[97,7],"
            "\"finish_reason\":\"stop\"}");
  EXPECT_TRUE(result_json("12", letters, {}, results).starts_with(result_prefix("12")));
  EXPECT_TRUE(result_json({}, letters, {}, results).starts_with("{\"text\":"));
}

TEST(Results, NeuronsOfAModelWithActivationSparsity) {
  Results results(1);
  results.add(text_event(0, 'a', FinishReason::length));
  const auto json_of = [&](const ResultNeurons& neurons) {
    return result_json({}, Letters(), {}, results, neurons);
  };
  using Mode = ActivationSparsity::Mode;
  const std::string plain = json_of({});
  EXPECT_EQ(json_of({.mode = Mode::predict,
                     .counts = {.rows = 2, .neurons = 80, .skipped = 50, .active = 10}}),
            plain.substr(0, plain.size() - 1) +
                ",\"activation_sparsity\":{\"mode\":\"predict\",\"skipped\":0.625000,"
                "\"active\":0.125000}}");
  EXPECT_TRUE(json_of({.mode = Mode::exact})
                  .ends_with("\"mode\":\"exact\",\"skipped\":null,\"active\":null}}"));
}

TEST(Results, Samples) {
  Results results(2);
  results.add(text_event(1, 'b', FinishReason::length));
  EXPECT_FALSE(results.finished());
  results.add(text_event(0, 'a', FinishReason::cancelled));
  EXPECT_TRUE(results.finished());
  Prompt prompt;
  prompt.text = "The \"king\"";
  prompt.echo = true;
  EXPECT_EQ(result_json("1", Letters(), prompt, results),
            "{\"id\":1,\"prompt\":\"The \\\"king\\\"\",\"samples\":["
            "{\"text\":\"a\",\"token_ids\":[97],\"finish_reason\":\"cancelled\"},"
            "{\"text\":\"b\",\"token_ids\":[98],\"finish_reason\":\"length\"}]}");
}

TEST(Results, LogProbs) {
  Results results(1);
  const TokenLogProbs of_prompt{.token = {0, -0.1f}, .top = {}};
  // Half a character, and a probability of 0.
  const TokenLogProbs of_token{
      .token = {97, -1.5f}, .top = {{97, -1.5f}, {0xc3, -std::numeric_limits<float>::infinity()}}};
  results.add({.token = 97,
               .text = "a",
               .log_probs = &of_token,
               .prompt_log_probs = std::span(&of_prompt, 1),
               .finish = FinishReason::length});
  Prompt prompt;
  prompt.request.prompt = {3, 0};
  prompt.request.log_probs = 2;
  prompt.echo = true;
  EXPECT_EQ(result_json("1", Letters(), prompt, results),
            "{\"id\":1,\"prompt_ids\":[3,0],\"prompt_logprobs\":"
            "[{\"id\":0,\"token\":\"<s>\",\"logprob\":-0.1,\"top_logprobs\":[]}],"
            "\"text\":\"a\",\"token_ids\":[97],\"finish_reason\":\"length\",\"logprobs\":"
            "[{\"id\":97,\"token\":\"a\",\"logprob\":-1.5,\"top_logprobs\":["
            "{\"id\":97,\"token\":\"a\",\"logprob\":-1.5},"
            "{\"id\":195,\"token\":\"\xef\xbf\xbd\",\"logprob\":null}]}]}");
  prompt.echo = false;
  EXPECT_TRUE(result_json("1", Letters(), prompt, results).starts_with("{\"id\":1,\"text\":"));
}

TEST(Results, Errors) {
  Results results(2);
  results.add({.sample = 1, .finish = FinishReason::error, .error = "NaN"});
  results.add(text_event(0, 'a', FinishReason::length));
  EXPECT_TRUE(results.finished());
  EXPECT_EQ(results.error(), "NaN");
  EXPECT_EQ(error_json("\"a\"", "bad \"x\"\n\xff"),
            "{\"id\":\"a\",\"error\":\"bad \\\"x\\\"\\n\xef\xbf\xbd\"}");
  EXPECT_TRUE(error_json("\"a\"", "").starts_with(error_prefix("\"a\"")));
}

TEST(Results, RequestOfAPrompt) {
  Prompt prompt;
  prompt.text = "ab";
  prompt.request.max_tokens = 3;
  prompt.request.log_probs = 1;
  Request request = make_request(Letters(), prompt, false, 8);
  EXPECT_EQ(request.prompt, (std::vector<int32_t>{0, 'a', 'b'}));
  EXPECT_EQ(request.max_tokens, 3);
  EXPECT_FALSE(request.prompt_log_probs);
  prompt.echo = true;
  prompt.text.reset();
  prompt.request.prompt = {5};
  request = make_request(Letters(), prompt, false, 8);
  EXPECT_EQ(request.prompt, std::vector<int32_t>{5});
  EXPECT_TRUE(request.prompt_log_probs);
}

TEST(Results, BoundOfLogProbs) {
  struct Case {
    int32_t samples;
    int64_t max_tokens;
    int64_t prompt;
    std::optional<int32_t> log_probs;
    bool of_prompt;
    bool good;
  };
  constexpr int64_t kContext = 1 << 16;
  const std::vector<Case> cases{
      {1024, 500, 1, 100, false, false},
      {1024, 500, 1, {}, false, true},
      {1024, -1, 1, {}, false, true},
      {1024, 4096, 1, 0, false, true},  // exactly the limit
      {1024, 4096, 1, 0, true, false},
      {1024, 4097, 1, 0, false, false},
      {1024, -1, 1, 0, false, false},
      {1024, -1, kContext - 4096, 0, false, true},
      {1, 41943, 4, 99, false, true},
      {1, 41942, 1, 99, true, true},
      {1, 41943, 1, 99, true, false},
      {1024, int64_t{1} << 40, kContext, 100, false, true},  // no room
      {1024, int64_t{1} << 40, kContext + 1, 100, false, true},
  };
  for (const Case& c : cases) {
    Request request;
    request.prompt.assign(static_cast<size_t>(c.prompt), 0);
    request.samples = c.samples;
    request.max_tokens = c.max_tokens;
    request.log_probs = c.log_probs;
    request.prompt_log_probs = c.of_prompt;
    const bool refused = testing::throws_error([&] { check_log_probs(request, kContext); },
                                               "are more than 4194304 in all");
    EXPECT_EQ(refused, !c.good) << c.samples << " x " << c.max_tokens << ", prompt " << c.prompt;
  }
}

}  // namespace
}  // namespace sparsellm
