#include "tools/run/result_check.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "tests/testing/throws_error.h"
#include "tools/run/results.h"

namespace sparsellm {
namespace {

using testing::throws_error;

// A token for each byte; 0 begins a text and 1 ends it.
class Letters final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options) const override {
    std::vector<int32_t> ids(options.add_special_tokens ? 1 : 0, 0);
    ids.insert(ids.end(), text.begin(), text.end());
    return ids;
  }
  std::string token_bytes(int32_t id, bool show_special) const override {
    return id <= 1 ? (show_special ? "<s>" : "") : std::string(1, static_cast<char>(id));
  }
  bool strips_leading_space() const override { return false; }
  int64_t vocab_size() const override { return 256; }
  std::optional<int32_t> bos_id() const override { return 0; }
  std::optional<int32_t> eos_id() const override { return 1; }
};

class ResultCheckTest : public ::testing::Test {
 protected:
  ResultCheckTest() {
    config_.vocab_size = 256;
    config_.eos_token_ids = {1};
    prompt_.id = "7";
    prompt_.prompt.text = "ab";
    prompt_.prompt.request.max_tokens = 3;
  }

  void require_result(std::string_view line) const {
    constexpr int64_t kContext = 8;
    ResultCheck(letters_, config_, kContext, false).require_result(line, prompt_, 4);
  }
  bool accepts(std::string_view line) const {
    try {
      require_result(line);
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return false;
    }
  }
  // A good line, and what becomes of it if the first of two texts is replaced by the second.
  void expect_only(const std::string& good,
                   const std::vector<std::pair<std::string, std::string>>& edits) const {
    EXPECT_TRUE(accepts(good)) << good;
    for (const auto& [from, to] : edits) {
      std::string line = good;
      const size_t at = line.find(from);
      ASSERT_NE(at, std::string::npos) << from;
      line.replace(at, from.size(), to);
      EXPECT_FALSE(accepts(line)) << line;
    }
    // A line is a part of the file: what comes after it is none of it.
    for (size_t size = 0; size < good.size(); ++size) {
      EXPECT_FALSE(accepts(std::string_view(good).substr(0, size))) << size;
    }
    for (size_t i = 0; i < good.size(); ++i) {
      EXPECT_FALSE(accepts(good.substr(0, i) + good.substr(i + 1)) && good[i] != good[i + 1]) << i;
    }
  }

  Letters letters_;
  ModelConfig config_;
  PromptLine prompt_;
};

TEST_F(ResultCheckTest, OneSample) {
  expect_only(R"({"id":7,"text":"xyz","token_ids":[120,121,122],"finish_reason":"length"})",
              {{"xyz", "xyy"},
               {"xyz", "xy\\u007a"},
               {"122", "123"},
               {"122", "122.0"},
               {"122", "0122"},
               {"122", "256"},
               {"122", "-1"},
               {"122", "1"},
               {"122", "122,1"},
               {",122", ""},
               {"length", "stop"},
               {"length", "cancelled"},
               {"length\"", "length\",\"logprobs\":[]"},
               {":7", ":8"},
               {":7", ": 7"},
               {"\"id\":7,", ""},
               {"}", "} "},
               {"}", "}}"}});
}

TEST_F(ResultCheckTest, EndsOfTheText) {
  expect_only(R"({"id":7,"text":"x","token_ids":[120,1],"finish_reason":"stop"})",
              {{"120,1", "120"}, {"stop", "length"}, {"[120,1", "[1,120"}, {",1]", ",0]"}});
  expect_only(R"({"id":7,"text":"","token_ids":[1],"finish_reason":"stop"})", {{"1]", "]"}});
  EXPECT_TRUE(
      accepts("{\"id\":7,\"text\":\"\xef\xbf\xbd\xef\xbf\xbdx\",\"token_ids\":"
              "[195,196,120],\"finish_reason\":\"length\"}"));
  prompt_.prompt.request.stop = {"yz", "q"};
  expect_only(R"({"id":7,"text":"x","token_ids":[120,121,122],"finish_reason":"stop"})",
              {{"\"x\"", "\"xyz\""}, {"122", "123"}, {"stop", "length"}});
  EXPECT_TRUE(
      accepts(R"({"id":7,"text":"xay","token_ids":[120,97,121],"finish_reason":"length"})"));
  prompt_.prompt.request.ignore_eos = true;
  EXPECT_FALSE(accepts(R"({"id":7,"text":"x","token_ids":[120,1],"finish_reason":"stop"})"));
}

TEST_F(ResultCheckTest, NumberOfTokens) {
  const auto line = [](int count) {
    std::string ids;
    for (int i = 0; i < count; ++i) {
      ids += ids.empty() ? "120" : ",120";
    }
    return "{\"id\":7,\"text\":\"" + std::string(static_cast<size_t>(count), 'x') +
           "\",\"token_ids\":[" + ids + "],\"finish_reason\":\"length\"}";
  };
  // The prompt has 3 tokens of a context of 8.
  const auto good_counts = [&](int64_t max_tokens) {
    prompt_.prompt.request.max_tokens = max_tokens;
    std::vector<int> counts;
    for (int count = 0; count < 12; ++count) {
      if (accepts(line(count))) {
        counts.push_back(count);
      }
    }
    return counts;
  };
  EXPECT_EQ(good_counts(0), std::vector<int>{0});
  EXPECT_EQ(good_counts(1), std::vector<int>{1});
  EXPECT_EQ(good_counts(5), std::vector<int>{5});
  EXPECT_EQ(good_counts(7), (std::vector<int>{5, 7}));
  EXPECT_EQ(good_counts(100), std::vector<int>{5});
  // As many as the context or the KV cache of that run held.
  EXPECT_EQ(good_counts(-1), (std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST_F(ResultCheckTest, SamplesAndPrompts) {
  prompt_.prompt.request.samples = 2;
  prompt_.prompt.request.max_tokens = 1;
  prompt_.prompt.echo = true;
  const std::string first = R"({"text":"x","token_ids":[120],"finish_reason":"length"})";
  const std::string second = R"({"text":"","token_ids":[1],"finish_reason":"stop"})";
  expect_only(R"({"id":7,"prompt":"ab","samples":[)" + first + "," + second + "]}",
              {{"," + second, ""},
               {first + ",", first + "," + first + ","},
               {"ab", "ac"},
               {"\"prompt\":\"ab\",", ""},
               {"\"prompt\":\"ab\"", "\"prompt_ids\":[97,98]"},
               {"samples", "sample"}});
  prompt_.prompt.text.reset();
  prompt_.prompt.request.prompt = {5, 0};
  prompt_.prompt.request.samples = 1;
  expect_only("{\"id\":7,\"prompt_ids\":[5,0]," + first.substr(1),
              {{"5,0", "5,1"}, {"5,0", "5"}, {"prompt_ids", "prompt"}});
}

TEST_F(ResultCheckTest, LogProbs) {
  prompt_.prompt.request.max_tokens = 1;
  prompt_.prompt.request.log_probs = 2;
  prompt_.prompt.echo = true;
  prompt_.prompt.text.reset();
  prompt_.prompt.request.prompt = {5, 98};
  const std::string good =
      R"({"id":7,"prompt_ids":[5,98],"prompt_logprobs":[{"id":98,"token":"b","logprob":-3.5,)"
      R"("top_logprobs":[{"id":120,"token":"x","logprob":-0.5},{"id":1,"token":"<s>",)"
      R"("logprob":-2.0}]}],"text":"x","token_ids":[120],"finish_reason":"length","logprobs":)"
      R"([{"id":120,"token":"x","logprob":-1.25,"top_logprobs":[{"id":97,"token":"a",)"
      R"("logprob":-0.75},{"id":120,"token":"x","logprob":-1.25}]}]})";
  EXPECT_TRUE(accepts(good));
  const std::vector<std::pair<std::string, std::string>> edits{
      {"\"id\":98,", "\"id\":99,"},
      {"\"b\"", "\"c\""},
      {"-3.5", "-1.5"},  // more than the second
      {"-3.5", "-3.50"},
      {"-3.5", "3.5"},
      {"-3.5", "\"-3.5\""},
      {"-3.5", "-inf"},
      {"-3.5", "nan"},
      {"-3.5", "-1e99"},
      {"-0.5", "-2.5"},   // not in order
      {"-2.0", "-2"},     // another form
      {"-0.5", "-0.05"},  // more than 1 together
      {"-1.25", "-1.5"},  // two of one token
      {"-0.75", "1.75"},
      {",{\"id\":120,\"token\":\"x\",\"logprob\":-1.25}]", "]"},
      {",\"logprobs\":", ",\"logprob\":"},
      {"\"id\":97,\"token\":\"a\"", "\"id\":120,\"token\":\"x\""},
  };
  for (const auto& [from, to] : edits) {
    std::string line = good;
    line.replace(line.find(from), from.size(), to);
    EXPECT_FALSE(accepts(line)) << line;
  }
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(accepts(good.substr(0, size))) << size;
  }
}

TEST_F(ResultCheckTest, Errors) {
  const std::string good = R"({"id":7,"error":"line 4: the \"x\""})";
  EXPECT_TRUE(accepts(good));
  for (const char* bad :
       {R"({"id":7,"error":"line 5: the \"x\""})", R"({"id":7,"error":"line 4: the \u0022x\""})",
        R"({"id":7,"erro":"line 4: the x"})", R"({"id":7,"error":7})", R"({"id":7,"error":})",
        R"({"id":7,"error":null})", R"({"id":7,"error":["line 4: "]})", R"({"id":7,"error":""})",
        R"({"id":7,"error":"line 4: x","more":1})", R"({"id":7,"error":"line 4: x"}})",
        R"({"id":7,"error":"line 4: \x"})", R"({"id":8,"error":"line 4: x"})",
        "{\"id\":7,\"error\":\"line 4: \xff\"}", "{\"id\":7,\"error\":\"line 4: \x01\"}"}) {
    EXPECT_FALSE(accepts(bad)) << bad;
  }
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(accepts(good.substr(0, size))) << size;
  }
  prompt_.error = "line 4: unknown field \"y\"";
  EXPECT_TRUE(accepts(R"({"id":7,"error":"line 4: unknown field \"y\""})"));
  EXPECT_TRUE(accepts(R"({"id":7,"error":"line 4: out of memory"})"));
  EXPECT_FALSE(accepts(R"({"id":7,"error":"line 4: unknown field \"z\""})"));
  EXPECT_FALSE(accepts(R"({"id":7,"error":"line 5: out of memory"})"));
  EXPECT_TRUE(throws_error(
      [&] {
        require_result(
            R"({"id":7,"text":"xyz","token_ids":[120,121,122],"finish_reason":"length"})");
      },
      "unknown field"));
}

}  // namespace
}  // namespace sparsellm
