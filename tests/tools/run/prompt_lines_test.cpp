#include "tools/run/prompt_lines.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "tests/testing/sanitized.h"

namespace sparsellm {
namespace {

rlim_t mapped_bytes() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

PromptLine read(std::string_view text) { return read_prompt_line(text, 5, {}); }

TEST(PromptLines, AllFields) {
  const PromptLine line = read(
      R"({"id": "a\"ö\n", "prompt": "Once\u0000 upon", "max_tokens": 7, "temperature": 0.5,
          "top_k": 3, "top_p": 0.25, "min_p": 0.125, "seed": 9, "repetition_penalty": 1.5,
          "frequency_penalty": -0.5, "presence_penalty": 2, "logit_bias": {"7": -100, "12": 1.5},
          "stop": ["\n", "The End"], "stop_token_ids": [4, 5], "ignore_eos": true, "n": 6,
          "logprobs": 2, "echo": true})");
  EXPECT_EQ(line.error, "");
  EXPECT_EQ(line.id, "\"a\\\"ö\\n\"");
  EXPECT_EQ(line.prompt.text, std::string("Once\0 upon", 10));
  EXPECT_TRUE(line.prompt.echo);
  const Request& request = line.prompt.request;
  EXPECT_TRUE(request.prompt.empty());
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.top_k, 3);
  EXPECT_EQ(request.sampling.top_p, 0.25f);
  EXPECT_EQ(request.sampling.min_p, 0.125f);
  EXPECT_EQ(request.seed, 9u);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(request.sampling.frequency_penalty, -0.5f);
  EXPECT_EQ(request.sampling.presence_penalty, 2.0f);
  ASSERT_EQ(request.sampling.logit_bias.size(), 2u);
  for (const LogitBias& bias : request.sampling.logit_bias) {
    EXPECT_EQ(bias.bias, bias.token == 7 ? -100.0f : 1.5f);
  }
  EXPECT_EQ(request.stop, (std::vector<std::string>{"\n", "The End"}));
  EXPECT_EQ(request.stop_token_ids, (std::vector<int32_t>{4, 5}));
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_EQ(request.samples, 6);
  EXPECT_EQ(request.log_probs, 2);
}

TEST(PromptLines, MissingAndNullFieldsAreTheDefaults) {
  Prompt defaults;
  defaults.echo = true;
  defaults.request.max_tokens = 3;
  defaults.request.seed = 8;
  defaults.request.stop = {"x"};
  defaults.request.sampling.temperature = 0.5f;
  for (const char* text : {R"({"prompt": "a"})",
                           R"({"prompt": "a", "prompt_ids": null, "id": null, "seed": null,
                               "stop": null, "temperature": null, "echo": null})"}) {
    const PromptLine line = read_prompt_line(text, 5, defaults);
    EXPECT_EQ(line.error, "");
    EXPECT_EQ(line.id, "5");
    EXPECT_TRUE(line.prompt.echo);
    EXPECT_EQ(line.prompt.request.max_tokens, 3);
    EXPECT_EQ(line.prompt.request.seed, 8u);
    EXPECT_EQ(line.prompt.request.stop, std::vector<std::string>{"x"});
    EXPECT_EQ(line.prompt.request.sampling.temperature, 0.5f);
  }
  EXPECT_FALSE(read_prompt_line(R"({"prompt": "", "seed": -1})", 5, defaults).prompt.request.seed);
}

TEST(PromptLines, TokenIds) {
  const PromptLine line = read(R"({"id": -3, "prompt_ids": [1, 0, 2147483647], "stop": "one"})");
  EXPECT_EQ(line.error, "");
  EXPECT_EQ(line.id, "-3");
  EXPECT_FALSE(line.prompt.text);
  EXPECT_EQ(line.prompt.request.prompt, (std::vector<int32_t>{1, 0, 2147483647}));
  EXPECT_EQ(line.prompt.request.stop, std::vector<std::string>{"one"});
}

struct BadLine {
  std::string text;
  std::string id;
  std::string error;
};

std::string with(const std::string& fields) {
  return "{\"id\": \"i\", \"prompt\": \"a\", " + fields + "}";
}

std::string repeated(const std::string& element, int count) {
  std::string text = element;
  for (int i = 1; i < count; ++i) {
    text += "," + element;
  }
  return text;
}

std::vector<BadLine> bad_lines() {
  const std::string i = "\"i\"";
  return {
      {"", kNoId, "line 5: invalid JSON at byte 1"},
      {"{", kNoId, "line 5: invalid JSON"},
      {"[]", kNoId, "line 5 is an array; expected an object"},
      {"7", kNoId, "line 5 is 7; expected an object"},
      {"null", kNoId, "line 5 is null"},
      {"{\"prompt\": \"a\"} {}", kNoId, "invalid JSON"},
      {std::string("{\"id\": 1}\0", 10), kNoId, "invalid JSON at byte 9"},
      {"{\"prompt\": \"\xff\"}", kNoId, "invalid JSON"},
      {"{\"prompt\": \"\xed\xa0\x80\"}", kNoId, "invalid JSON"},
      {"{\"prompt\": \"\\ud800\"}", kNoId, "invalid JSON"},
      {"{\"prompt\": \"a\nb\"}", kNoId, "invalid JSON"},
      {"{\"prompt\": \"a\", \"prompt\": \"b\"}", kNoId, "the key \"prompt\" is there twice"},
      {"{\"id\": 1, \"id\": 2, \"prompt\": \"a\"}", kNoId, "the key \"id\" is there twice"},
      {std::string(1000000, '['), kNoId, "line 5 is an array; expected an object"},
      {"{\"a\": " + std::string(1000000, '['), kNoId, "nested more than 4 levels deep"},
      {with("\"stop\": [[[[[[]]]]]]"), kNoId, "nested"},
      {"{\"id\": 1e400, \"prompt\": \"a\"}", kNoId, "number out of range"},
      {"{\"id\": 1.5, \"prompt\": \"a\"}", kNoId, "line 5: id is 1.5"},
      {"{\"id\": true, \"prompt\": \"a\"}", kNoId, "line 5: id is true"},
      {"{\"id\": 9223372036854775808, \"prompt\": \"a\"}", kNoId, "line 5: id is 92233720"},
      {"{\"id\": \"" + std::string(257, 'x') + "\", \"prompt\": \"a\"}", kNoId, "id has 257 bytes"},
      {"{}", "5", "line 5: prompt is missing"},
      {"{\"id\": \"i\", \"prompt\": null}", i, "line 5: prompt is missing"},
      {"{\"id\": \"i\", \"prompt\": 7}", i, "line 5: prompt is 7; expected a string"},
      {"{\"id\": \"i\", \"prompt_ids\": [1, -1]}", i, "prompt_ids holds -1"},
      {"{\"id\": \"i\", \"prompt_ids\": [1, 2147483648]}", i, "prompt_ids holds 2147483648"},
      {"{\"id\": \"i\", \"prompt_ids\": \"1\"}", i, "prompt_ids is \"1\""},
      {with("\"prompt_ids\": [1]"), i, "line 5 has both prompt and prompt_ids"},
      {with("\"promt\": 1"), i, "line 5: unknown field \"promt\""},
      {with("\"unknown\": null"), i, "unknown field \"unknown\""},
      {with("\"a\\nb\": 1"), i, "unknown field \"a\\nb\""},
      {with("\"max_tokens\": -2"), i, "max_tokens is -2"},
      {with("\"max_tokens\": 1.0"), i, "max_tokens is 1.0"},
      {with("\"max_tokens\": 18446744073709551615"), i, "max_tokens is 18446744073709551615"},
      {with("\"temperature\": -1"), i, "line 5: temperature -1"},
      {with("\"temperature\": \"hot\""), i, "temperature is \"hot\""},
      {with("\"temperature\": 1e39"), i, "temperature is 1e+39"},
      {with("\"top_k\": -1"), i, "top_k is -1"},
      {with("\"top_p\": 0"), i, "top_p 0 "},
      {with("\"min_p\": 2"), i, "min_p 2 "},
      {with("\"repetition_penalty\": 0"), i, "repetition_penalty 0"},
      {with("\"frequency_penalty\": []"), i, "frequency_penalty is an array"},
      {with("\"presence_penalty\": {}"), i, "presence_penalty is an object"},
      {with("\"seed\": -2"), i, "seed is -2"},
      {with("\"seed\": 4611686018427387905"), i, "seed is 4611686018427387905"},
      {with("\"ignore_eos\": 1"), i, "ignore_eos is 1"},
      {with("\"stop\": 1"), i, "stop is 1"},
      {with("\"stop\": [1]"), i, "stop holds 1"},
      {with("\"stop\": \"\""), i, "stop has an empty text"},
      {with("\"stop\": [\"a\", [\"b\"]]"), i, "stop holds an array; expected strings"},
      {with("\"stop\": [\"a\", \"\"]"), i, "stop has an empty text"},
      {with("\"stop\": {\"a\": \"b\"}"), i, "stop is an object; expected an array of strings"},
      {with("\"stop\": [" + repeated("\"a\"", 65) + "]"), i, "stop has more than 64 elements"},
      {with("\"stop\": \"" + std::string(1025, 'x') + "\""), i, "stop has a text of 1025 bytes"},
      {with("\"stop_token_ids\": [" + repeated("1", 1025) + "]"), i,
       "stop_token_ids has more than 1024 elements"},
      {with("\"prompt_ids\": {\"a\": 1}"), i, "prompt_ids is an object"},
      {with("\"prompt_ids\": [[1]]"), i, "prompt_ids holds an array"},
      {with("\"logit_bias\": {\"1\": {\"2\": 3}}"), i, "logit_bias[\"1\"] is an object"},
      {with("\"logit_bias\": {\"1\": 1, \"1\": 2}"), i, "logit_bias has token 1 twice"},
      // Of several errors in fields the first is told; an id after them is read all the same.
      {"{\"n\": 0, \"stop\": [1], \"id\": \"i\", \"prompt\": \"a\"}", i, "n is 0"},
      {"{\"x\": {\"id\": 3, \"prompt\": [{}]}, \"id\": \"i\"}", i, "unknown field \"x\""},
      {"{\"n\": 0, \"id\": [], \"prompt\": \"a\"}", kNoId, "line 5: id is an array"},
      {"{\"n\": 0, \"n\": 0, \"id\": 7}", kNoId, "the key \"n\" is there twice"},
      {"{\"n\": null, \"n\": 0, \"id\": 7}", kNoId, "the key \"n\" is there twice"},
      {"{\"n\": 0, \"id\": 7, \"prompt\": \"a\"", kNoId, "invalid JSON"},
      {with("\"stop_token_ids\": [-1]"), i, "stop_token_ids holds -1"},
      {with("\"n\": 0"), i, "n is 0"},
      {with("\"n\": 1025"), i, "n is 1025"},
      {with("\"n\": 1000000000"), i, "n is 1000000000"},
      {with("\"logprobs\": -1"), i, "logprobs is -1"},
      {with("\"logprobs\": 101"), i, "logprobs is 101"},
      {with("\"logprobs\": true"), i, "logprobs is true"},
      {with("\"echo\": \"yes\""), i, "echo is \"yes\""},
      {with("\"logit_bias\": [[1, 2]]"), i, "logit_bias is an array"},
      {with("\"logit_bias\": {\"king\": 1}"), i, "logit_bias has the key \"king\""},
      {with("\"logit_bias\": {\"-1\": 1}"), i, "the key \"-1\""},
      {with("\"logit_bias\": {\"2147483648\": 1}"), i, "the key \"2147483648\""},
      {with("\"logit_bias\": {\"\": 1}"), i, "the key \"\""},
      {with("\"logit_bias\": {\"7x\": 1}"), i, "the key \"7x\""},
      {with("\"logit_bias\": {\" 7\": 1}"), i, "the key \" 7\""},
      {with("\"logit_bias\": {\"1\": true}"), i, "logit_bias[\"1\"] is true"},
      {with("\"logit_bias\": {\"1\": 1, \"01\": 2}"), i, "1"},
      {with("\"logit_bias\": {\"1\": 1}, \"zzz\": [1, 2]"), i, "unknown field \"zzz\""},
  };
}

TEST(PromptLines, Bad) {
  for (const BadLine& c : bad_lines()) {
    const PromptLine line = read(c.text);
    EXPECT_NE(line.error.find(c.error), std::string::npos)
        << c.text.substr(0, 200) << ": " << line.error;
    EXPECT_NE(line.error, "") << c.text.substr(0, 200);
    EXPECT_EQ(line.error.find('\n'), std::string::npos);
    EXPECT_LT(line.error.size(), 300u);
    EXPECT_EQ(line.id, c.id) << c.text.substr(0, 200);
    EXPECT_EQ(read_prompt_id(c.text, 5).value_or(kNoId), line.id);
  }
}

TEST(PromptLines, AsManyStopsAsTheEngineTakes) {
  const PromptLine line =
      read(R"({"prompt": "a", "stop": [)" + repeated("\"" + std::string(1024, 'x') + "\"", 64) +
           R"(], "stop_token_ids": [)" + repeated("0", 1024) + "]}");
  EXPECT_EQ(line.error, "");
  EXPECT_EQ(line.prompt.request.stop, std::vector<std::string>(64, std::string(1024, 'x')));
  EXPECT_EQ(line.prompt.request.stop_token_ids, std::vector<int32_t>(1024, 0));
}

// A field that is there takes the place of the default, also with fewer elements, and with none.
TEST(PromptLines, ListsTakeThePlaceOfDefaults) {
  Prompt defaults;
  defaults.request.stop = {"x", "y"};
  defaults.request.stop_token_ids = {1, 2};
  defaults.request.sampling.logit_bias = {{.token = 3, .bias = 1.0f}};
  const PromptLine line = read_prompt_line(
      R"({"prompt": "a", "stop": ["z"], "stop_token_ids": [], "logit_bias": {}})", 5, defaults);
  EXPECT_EQ(line.error, "");
  EXPECT_EQ(line.prompt.request.stop, std::vector<std::string>{"z"});
  EXPECT_TRUE(line.prompt.request.stop_token_ids.empty());
  EXPECT_TRUE(line.prompt.request.sampling.logit_bias.empty());
}

TEST(PromptLines, TheLowestAndHighestValues) {
  const PromptLine lowest = read(
      R"({"id": -9223372036854775808, "prompt_ids": [0], "max_tokens": -1, "temperature": 0,
          "top_k": 0, "top_p": 1e-30, "min_p": 0, "seed": 0, "repetition_penalty": 1e-30,
          "logit_bias": {"0": -3}, "stop": [], "stop_token_ids": [0], "n": 1, "logprobs": 0})");
  EXPECT_EQ(lowest.error, "");
  EXPECT_EQ(lowest.id, "-9223372036854775808");
  const Request& low = lowest.prompt.request;
  EXPECT_EQ(low.prompt, std::vector<int32_t>{0});
  EXPECT_EQ(low.max_tokens, -1);
  EXPECT_EQ(low.sampling.temperature, 0.0f);
  EXPECT_EQ(low.sampling.top_k, 0);
  EXPECT_EQ(low.sampling.top_p, 1e-30f);
  EXPECT_EQ(low.sampling.min_p, 0.0f);
  EXPECT_EQ(low.seed, 0u);
  ASSERT_EQ(low.sampling.logit_bias.size(), 1u);
  EXPECT_EQ(low.sampling.logit_bias[0].token, 0);
  EXPECT_EQ(low.sampling.logit_bias[0].bias, -3.0f);
  EXPECT_TRUE(low.stop.empty());
  EXPECT_EQ(low.stop_token_ids, std::vector<int32_t>{0});
  EXPECT_EQ(low.samples, 1);
  EXPECT_EQ(low.log_probs, 0);

  const std::string id(256, 'x');
  const PromptLine highest = read("{\"id\": \"" + id + R"(", "prompt_ids": [2147483647],
          "top_k": 2147483647, "top_p": 1, "min_p": 1, "seed": 4611686018427387904,
          "logit_bias": {"2147483647": 3}, "stop_token_ids": [2147483647], "n": 1024,
          "logprobs": 100})");
  EXPECT_EQ(highest.error, "");
  EXPECT_EQ(highest.id, "\"" + id + "\"");
  const Request& high = highest.prompt.request;
  EXPECT_EQ(high.prompt, std::vector<int32_t>{2147483647});
  EXPECT_EQ(high.sampling.top_k, 2147483647);
  EXPECT_EQ(high.sampling.top_p, 1.0f);
  EXPECT_EQ(high.sampling.min_p, 1.0f);
  EXPECT_EQ(high.seed, 4611686018427387904u);
  ASSERT_EQ(high.sampling.logit_bias.size(), 1u);
  EXPECT_EQ(high.sampling.logit_bias[0].token, 2147483647);
  EXPECT_EQ(high.stop_token_ids, std::vector<int32_t>{2147483647});
  EXPECT_EQ(high.samples, 1024);
  EXPECT_EQ(high.log_probs, 100);

  // -1 is a seed that is not known, also where the default is another.
  Prompt defaults;
  defaults.request.seed = 8;
  EXPECT_EQ(read_prompt_line(R"({"prompt": "a", "seed": -1})", 5, defaults).prompt.request.seed,
            std::nullopt);
  EXPECT_EQ(read_prompt_line(R"({"prompt": "", "max_tokens": 0})", 5, defaults).error, "");
}

TEST(PromptLines, Ids) {
  EXPECT_EQ(read_prompt_id(R"({"id": 7, "anything": [1]})", 5), "7");
  EXPECT_EQ(read_prompt_id(R"({"id": "7"})", 5), "\"7\"");
  EXPECT_EQ(read_prompt_id("{}", 5), "5");
  EXPECT_EQ(read_prompt_id("{\"id\": 7", 5), std::nullopt);
  EXPECT_EQ(read_prompt_id(R"({"id": []})", 5), std::nullopt);
}

// The address space that reading takes is bounded by that of the line, whatever is in it.
TEST(PromptLines, AHostileLineTakesLittleMoreThanItsBytes) {
  if (testing::kSanitized) {
    GTEST_SKIP() << "sanitizers take the address space";
  }
  constexpr int kElements = 3'000'000;
  struct Case {
    std::string begin;
    std::string element;
    std::string end;
    rlim_t bytes;  // in all
    std::string error;
  };
  constexpr rlim_t kFew = 4 << 20;            // the heap grows by 1 MiB
  constexpr rlim_t kParser = 12 * kElements;  // it keeps brackets until a string or a number
  const std::vector<Case> cases{
      {R"({"stop":[)", R"("a")", "]}", kFew, "stop has more than 64 elements"},
      {R"({"stop":[)", "[]", "]}", kParser, "stop holds an array"},
      {R"({"stop_token_ids":[)", "7", "]}", kFew, "stop_token_ids has more than 1024"},
      {R"({"logit_bias":{)", R"("1":1)", "}}", 8 * kFew, "more than 1048576 elements"},
      {R"({"logit_bias":{)", R"("x":1)", "}}", kFew, "logit_bias has the key \"x\""},
      {"{", R"("x":1)", "}", kFew, "unknown field \"x\""},
      {R"({"x":[)", "{}", "]}", kParser, "unknown field \"x\""},
      {R"({"n":{)", R"("":{})", "}}", kFew, "n is an object"},
      {R"({"prompt_ids":[)", "7", "]}", rlim_t{12} * kElements, ""},
  };
  for (const Case& c : cases) {
    const std::string text = c.begin + repeated(c.element, kElements) + c.end;
    ::malloc_trim(0);
    struct rlimit before {};
    ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
    const struct rlimit tight { .rlim_cur = mapped_bytes() + c.bytes, .rlim_max = before.rlim_max };
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &tight), 0);
    const PromptLine line = read(text);
    const std::optional<std::string> id = read_prompt_id(text, 5);
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
    EXPECT_NE(line.error.find(c.error), std::string::npos) << c.begin << ": " << line.error;
    EXPECT_EQ(line.error.empty(), c.error.empty());
    EXPECT_EQ(line.id, "5");
    EXPECT_EQ(id, "5");
  }
}

TEST(PromptLines, Blank) {
  EXPECT_TRUE(is_blank(""));
  EXPECT_TRUE(is_blank(" \t\r"));
  EXPECT_FALSE(is_blank(" {"));
  EXPECT_FALSE(is_blank(std::string_view("\0", 1)));
}

}  // namespace
}  // namespace sparsellm
