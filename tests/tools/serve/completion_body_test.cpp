#include "tools/serve/completion_body.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using Ids = std::vector<int32_t>;
using testing::throws_error;

CompletionBody read(std::string_view text) {
  Prompt defaults;
  defaults.request.max_tokens = 16;
  return read_completion_body(text, defaults);
}

// Of a body with one more field.
CompletionBody read_field(const std::string& field) {
  return read(R"({"prompt": "a", )" + field + "}");
}

struct Refused {
  std::string text;
  std::string why;
};

void expect_refused(const std::vector<Refused>& cases) {
  for (const Refused& c : cases) {
    EXPECT_TRUE(throws_error([&] { read(c.text); }, c.why)) << c.text;
  }
}

void expect_fields_refused(const std::vector<Refused>& cases) {
  for (const Refused& c : cases) {
    EXPECT_TRUE(throws_error([&] { read_field(c.text); }, c.why)) << c.text;
  }
}

TEST(CompletionBody, AllFields) {
  const CompletionBody body = read(
      R"({"model": "m", "prompt": "Once\u0000 ü", "max_tokens": 7, "temperature": 0.5,
          "top_p": 0.25, "top_k": 3, "min_p": 0.125, "repetition_penalty": 1.5,
          "frequency_penalty": -0.5, "presence_penalty": 2, "logit_bias": {"7": -100, "12": 1.5},
          "n": 6, "best_of": 6, "seed": 9, "stop": ["\n", "The End"], "stop_token_ids": [4, 5],
          "ignore_eos": true, "logprobs": 2, "echo": true, "stream": true,
          "stream_options": {"include_usage": true}, "add_special_tokens": false,
          "skip_special_tokens": false, "suffix": "", "user": "u", "metadata": {"a": {"b": [1]}},
          "store": true, "service_tier": "auto"})");
  EXPECT_EQ(body.model, "m");
  ASSERT_EQ(body.prompts.size(), 1u);
  EXPECT_EQ(std::get<std::string>(body.prompts[0]), std::string("Once\0 \xc3\xbc", 8));
  EXPECT_TRUE(body.stream);
  EXPECT_TRUE(body.include_usage);
  EXPECT_TRUE(body.has_max_tokens);
  EXPECT_TRUE(body.common.echo);
  EXPECT_FALSE(body.common.add_special_tokens);
  const Request& request = body.common.request;
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.samples, 6);
  EXPECT_EQ(request.seed, 9u);
  EXPECT_EQ(request.log_probs, 2);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"\n", "The End"}));
  EXPECT_EQ(request.stop_token_ids, (Ids{4, 5}));
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_TRUE(request.show_special_tokens);
  const SamplingParams& sampling = request.sampling;
  EXPECT_EQ(sampling.temperature, 0.5f);
  EXPECT_EQ(sampling.top_p, 0.25f);
  EXPECT_EQ(sampling.top_k, 3);
  EXPECT_EQ(sampling.min_p, 0.125f);
  EXPECT_EQ(sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(sampling.frequency_penalty, -0.5f);
  EXPECT_EQ(sampling.presence_penalty, 2.0f);
  ASSERT_EQ(sampling.logit_bias.size(), 2u);
  for (const LogitBias& bias : sampling.logit_bias) {
    EXPECT_EQ(bias.bias, bias.token == 7 ? -100.0f : 1.5f);
  }
}

TEST(CompletionBody, AbsentAndNullAreTheDefaults) {
  Prompt defaults;
  defaults.request.max_tokens = 16;
  defaults.request.sampling.temperature = 0.75f;
  defaults.request.sampling.top_k = 5;
  std::string nulls = R"({"prompt": "a")";
  for (const char* field : {"model",
                            "max_tokens",
                            "temperature",
                            "top_p",
                            "top_k",
                            "min_p",
                            "repetition_penalty",
                            "frequency_penalty",
                            "presence_penalty",
                            "logit_bias",
                            "n",
                            "best_of",
                            "seed",
                            "stop",
                            "stop_token_ids",
                            "ignore_eos",
                            "logprobs",
                            "echo",
                            "stream",
                            "stream_options",
                            "add_special_tokens",
                            "skip_special_tokens",
                            "suffix",
                            "user",
                            "tools",
                            "unheard_of"}) {
    nulls += std::string(", \"") + field + "\": null";
  }
  for (const std::string& text : {std::string(R"({"prompt": "a"})"), nulls + "}"}) {
    const CompletionBody body = read_completion_body(text, defaults);
    EXPECT_FALSE(body.model);
    EXPECT_FALSE(body.stream || body.include_usage || body.has_max_tokens || body.common.echo);
    EXPECT_TRUE(body.common.add_special_tokens);
    const Request& request = body.common.request;
    EXPECT_EQ(request.max_tokens, 16);
    EXPECT_EQ(request.sampling.temperature, 0.75f);
    EXPECT_EQ(request.sampling.top_k, 5);
    EXPECT_EQ(request.samples, 1);
    EXPECT_FALSE(request.seed || request.log_probs || request.ignore_eos ||
                 request.show_special_tokens);
    EXPECT_TRUE(request.stop.empty() && request.stop_token_ids.empty());
  }
}

TEST(CompletionBody, FormsOfAPrompt) {
  const auto texts = read(R"({"prompt": ["a", "bc"]})").prompts;
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_EQ(std::get<std::string>(texts[1]), "bc");
  const auto ids = read(R"({"prompt": [5, 0, 7]})").prompts;
  ASSERT_EQ(ids.size(), 1u);
  EXPECT_EQ(std::get<Ids>(ids[0]), (Ids{5, 0, 7}));
  const auto lists = read(R"({"prompt": [[5], [6, 7]]})").prompts;
  ASSERT_EQ(lists.size(), 2u);
  EXPECT_EQ(std::get<Ids>(lists[1]), (Ids{6, 7}));
  const auto both = read(R"({"prompt": [[5], "a"]})").prompts;
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(std::get<std::string>(both[1]), "a");
}

TEST(CompletionBody, PromptsOfOtherForms) {
  expect_refused({
      {R"({})", "prompt is missing or empty"},
      {R"({"prompt": null})", "prompt is missing or empty"},
      {R"({"prompt": []})", "prompt is missing or empty"},
      {R"({"prompt": ""})", "prompt is empty"},
      {R"({"prompt": ["a", ""]})", "prompt is empty"},
      {R"({"prompt": [[1], []]})", "prompt is empty"},
      {R"({"prompt": 5})", "prompt is 5; expected text, token ids"},
      {R"({"prompt": true})", "prompt is true"},
      {R"({"prompt": {"a": 1}})", "prompt is an object"},
      {R"({"prompt": [1, "a"]})", "prompt has both token ids and prompts"},
      {R"({"prompt": ["a", 1]})", "prompt has both token ids and prompts"},
      {R"({"prompt": [[1], 2]})", "prompt has both token ids and prompts"},
      {R"({"prompt": [1, [2]]})", "prompt has both token ids and prompts"},
      {R"({"prompt": [["a"]]})", "prompt holds \"a\""},
      {R"({"prompt": [[[1]]]})", "prompt holds an array"},
      {R"({"prompt": [null]})", "prompt holds null"},
      {R"({"prompt": [{}]})", "prompt holds an object"},
      {R"({"prompt": [1.5]})", "prompt holds 1.5; expected integers"},
      {R"({"prompt": [-1]})", "prompt holds -1; expected integers"},
      {R"({"prompt": [2147483648]})", "prompt holds 2147483648; expected integers"},
      {R"({"prompt": [1e30]})", "prompt holds"},
  });
}

TEST(CompletionBody, AtMost1024Prompts) {
  const auto body = [](int prompts) {
    std::string text = R"({"prompt": ["a")";
    for (int i = 1; i < prompts; ++i) {
      text += i % 2 == 0 ? ", \"a\"" : ", [1]";
    }
    return text + "]}";
  };
  EXPECT_EQ(read(body(1024)).prompts.size(), 1024u);
  EXPECT_TRUE(throws_error([&] { read(body(1025)); }, "prompt has more than 1024 elements"));
}

TEST(CompletionBody, WrongTypes) {
  expect_fields_refused({
      {R"("model": 5)", "model is 5"},
      {R"("max_tokens": "7")", "max_tokens is \"7\""},
      {R"("max_tokens": 7.5)", "max_tokens is 7.5"},
      {R"("max_tokens": [7])", "max_tokens is an array"},
      {R"("temperature": "hot")", "temperature is \"hot\""},
      {R"("temperature": true)", "temperature is true"},
      {R"("top_p": {})", "top_p is an object"},
      {R"("top_k": 1.5)", "top_k is 1.5"},
      {R"("n": "2")", "n is \"2\""},
      {R"("seed": 0.5)", "seed is 0.5"},
      {R"("stop": 5)", "stop is 5"},
      {R"("stop": [5])", "stop holds 5"},
      {R"("stop": [["a"]])", "stop holds an array"},
      {R"("stop_token_ids": 5)", "stop_token_ids is 5"},
      {R"("stop_token_ids": ["a"])", "stop_token_ids holds \"a\""},
      {R"("logit_bias": [1])", "logit_bias is an array"},
      {R"("logit_bias": {"a": 1})", "logit_bias has the key \"a\""},
      {R"("logit_bias": {"-1": 1})", "logit_bias has the key \"-1\""},
      {R"("logit_bias": {"1.5": 1})", "logit_bias has the key \"1.5\""},
      {R"("logit_bias": {"5000000000": 1})", "logit_bias has the key"},
      {R"("logit_bias": {"5": "x"})", "\"x\""},
      {R"("logit_bias": {"5": {}})", "an object"},
      {R"("ignore_eos": 1)", "ignore_eos is 1"},
      {R"("logprobs": true)", "logprobs is true"},
      {R"("echo": "yes")", "echo is \"yes\""},
      {R"("stream": 0)", "stream is 0"},
      {R"("stream_options": true)", "stream_options is true"},
      {R"("stream_options": {"include_usage": 1})", "stream_options.include_usage is 1"},
      {R"("add_special_tokens": [])", "add_special_tokens is an array"},
      {R"("skip_special_tokens": "no")", "skip_special_tokens is \"no\""},
      {R"("best_of": "1")", "best_of is \"1\""},
      {R"("suffix": 5)", "suffix is 5"},
  });
}

TEST(CompletionBody, OutOfRange) {
  expect_fields_refused({
      {R"("max_tokens": -1)", "max_tokens is negative"},
      {R"("max_tokens": -2)", "max_tokens is -2"},
      {R"("max_tokens": 9223372036854775808)", "max_tokens is"},
      {R"("temperature": -0.5)", "temperature -0.5 is not a number >= 0"},
      {R"("top_p": 0)", "top_p 0 is not in (0, 1]"},
      {R"("top_p": 1.5)", "top_p 1.5 is not in (0, 1]"},
      {R"("top_k": -1)", "top_k is -1"},
      {R"("min_p": -0.5)", "min_p -0.5"},
      {R"("min_p": 2)", "min_p 2"},
      {R"("repetition_penalty": 0)", "repetition_penalty 0"},
      {R"("n": 0)", "n is 0"},
      {R"("n": -1)", "n is -1"},
      {R"("n": 1025)", "n is 1025"},
      {R"("seed": -2)", "seed is -2"},
      {R"("seed": 4611686018427387905)", "seed is"},
      {R"("logprobs": -1)", "logprobs is -1"},
      {R"("logprobs": 101)", "logprobs is 101"},
      {R"("stop": "")", "stop has an empty text"},
      {R"("stop": [""])", "stop has an empty text"},
      {R"("stop_token_ids": [-1])", "stop_token_ids holds -1"},
      {R"("best_of": 0)", "best_of is 0"},
      {R"("best_of": 2)", "best_of is 2, but n is 1"},
      {R"("n": 2, "best_of": 1)", "best_of is 1, but n is 2"},
      {R"("suffix": "x")", "suffix is not supported"},
  });
  EXPECT_EQ(read_field(R"("max_tokens": 0)").common.request.max_tokens, 0);
  EXPECT_EQ(read_field(R"("logprobs": 100)").common.request.log_probs, 100);
  EXPECT_FALSE(read_field(R"("seed": -1)").common.request.seed);
}

// JSON has no such numbers; some write them all the same, or one that no float holds.
TEST(CompletionBody, NotANumberAndInfinity) {
  for (const std::string field : {"temperature", "top_p", "min_p", "repetition_penalty",
                                  "frequency_penalty", "presence_penalty"}) {
    for (const std::string value : {"NaN", "nan", "Infinity", "-Infinity", "1e999", "-1e999",
                                    "1e39", "-1e39", "0x10", "1.", ".5", "+1"}) {
      EXPECT_TRUE(throws_error([&] { read_field("\"" + field + "\": " + value); }, ""))
          << field << ": " << value;
    }
  }
  EXPECT_TRUE(throws_error([] { read_field(R"("logit_bias": {"5": 1e39})"); }, "logit_bias"));
}

TEST(CompletionBody, StopsAreLimited) {
  const auto body = [](int stops, size_t bytes) {
    std::string text = R"("stop": [)";
    for (int i = 0; i < stops; ++i) {
      text += (i > 0 ? ", \"" : "\"") + std::string(bytes, 'x') + "\"";
    }
    return text + "]";
  };
  EXPECT_EQ(read_field(body(64, 1024)).common.request.stop.size(), 64u);
  EXPECT_TRUE(throws_error([&] { read_field(body(65, 1)); }, "stop has more than 64 elements"));
  EXPECT_TRUE(throws_error([&] { read_field(body(1, 1025)); }, "stop has a text of 1025 bytes"));
  std::string ids = R"("stop_token_ids": [0)";
  for (int i = 1; i <= 1024; ++i) {
    ids += ", 1";
  }
  EXPECT_TRUE(
      throws_error([&] { read_field(ids + "]"); }, "stop_token_ids has more than 1024 elements"));
}

TEST(CompletionBody, UnknownFieldsAreNamed) {
  for (const std::string field : {"tools", "response_format", "min_tokens", "messages", "Prompt",
                                  "max_completion_tokens", "guided_json", ""}) {
    for (const char* value : {"1", "\"x\"", "{}", "[]", "false"}) {
      EXPECT_TRUE(throws_error([&] { read_field("\"" + field + "\": " + value); },
                               "\"" + field + "\" is not supported"))
          << value;
    }
  }
  EXPECT_TRUE(throws_error([] { read_field(R"("stream_options": {"chunk": 1})"); },
                           "stream_options: unknown field \"chunk\""));
}

// Which of two counts, parsers do not agree on.
TEST(CompletionBody, NoFieldTwice) {
  expect_refused({
      {R"({"prompt": "a", "prompt": "b"})", "\"prompt\""},
      {R"({"prompt": "a", "echo": true, "echo": true})", "\"echo\""},
      {R"({"prompt": "a", "seed": null, "seed": 1})", "\"seed\""},
      {R"({"prompt": "a", "user": "a", "user": "b"})", "\"user\""},
      {R"({"prompt": "a", "logit_bias": {"5": 1, "5": 2}})", "logit_bias has token 5 twice"},
      {R"({"prompt": "a", "logit_bias": {"5": 1, "05": 2}})", "logit_bias has token 5 twice"},
      {R"({"prompt": "a", "stream_options": {"include_usage": true, "include_usage": false}})",
       "\"include_usage\""},
  });
}

TEST(CompletionBody, NotAnObject) {
  for (const char* text : {"[]", "\"a\"", "5", "null", "true", "[{\"prompt\": \"a\"}]"}) {
    EXPECT_TRUE(throws_error([&] { read(text); }, "the body is ")) << text;
  }
}

TEST(CompletionBody, NotJson) {
  for (const std::string text :
       {"", " ", "{", "{\"prompt\": \"a\"", "{\"prompt\": \"a\"}}", "{'prompt': 'a'}",
        "{\"prompt\": \"a\",}", "{\"prompt\": \"a\"} x", "\xef\xbb\xbf{", "{\"prompt\": \"\n\"}",
        "{\"prompt\": \"\\x\"}"}) {
    EXPECT_TRUE(throws_error([&] { read(text); }, "the body")) << text;
  }
}

TEST(CompletionBody, InvalidUtf8) {
  for (const std::string bytes :
       {"\xff", "\xc3", "\xe2\x96", "\xed\xa0\x80", "\xc0\x80", "\xf5\x80\x80\x80", "\\ud800",
        "\\udc00", "\\ud800x", "\\ud800\\ud800"}) {
    EXPECT_TRUE(throws_error([&] { read("{\"prompt\": \"" + bytes + "\"}"); }, "the body"))
        << bytes;
    EXPECT_TRUE(
        throws_error([&] { read("{\"prompt\": \"a\", \"" + bytes + "\": 1}"); }, "the body"))
        << bytes;
    EXPECT_TRUE(throws_error([&] { read_field("\"stop\": \"" + bytes + "\""); }, "the body"))
        << bytes;
  }
  EXPECT_EQ(std::get<std::string>(read(R"({"prompt": "\ud83d\ude00"})").prompts[0]),
            "\xf0\x9f\x98\x80");
}

// Also in what is passed over.
TEST(CompletionBody, NestingIsLimited) {
  const auto nested = [](const std::string& field, int depth) {
    const auto levels = static_cast<size_t>(depth);
    return "\"" + field + "\": " + std::string(levels, '[') + std::string(levels, ']');
  };
  EXPECT_EQ(read_field(nested("metadata", 3)).prompts.size(), 1u);
  for (const int depth : {4, 5, 100, 100'000}) {
    EXPECT_TRUE(throws_error([&] { read_field(nested("metadata", depth)); }, "the body")) << depth;
  }
  EXPECT_TRUE(throws_error([&] { read("{" + nested("prompt", 100'000) + "}"); }, "prompt"));
}

TEST(CompletionBody, MessagesAreShort) {
  const std::string longest(100'000, 'x');
  for (const std::string& text : {R"({"prompt": "a", ")" + longest + R"(": 1})",
                                  R"({"prompt": "a", "n": ")" + longest + "\"}",
                                  R"({"prompt": "a", "logit_bias": {")" + longest + R"(": 1}})"}) {
    try {
      read(text);
      FAIL() << text.substr(0, 40);
    } catch (const Error& error) {
      EXPECT_LT(std::string_view(error.what()).size(), 1000u);
    }
  }
}

}  // namespace
}  // namespace sparsellm
