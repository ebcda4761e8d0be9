#include "tools/serve/tokenize.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/testing/byte_tokenizer.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using nlohmann::json;
using testing::ByteTokenizer;
using testing::throws_error;

class TokenizeTest : public ::testing::Test {
 protected:
  json encoded(const std::string& body) const { return json::parse(tokenize(context_, body)); }
  std::string decoded(const std::string& body) const {
    return json::parse(detokenize(context_, body))["prompt"];
  }
  static std::string ids(size_t count, const std::string& id) {
    std::string body = R"({"tokens":[)" + id;
    body.reserve(body.size() + count * (id.size() + 1) + 2);
    for (size_t i = 1; i < count; ++i) {
      body += "," + id;
    }
    return body + "]}";
  }

  ByteTokenizer tokenizer_{{.texts = {std::string(64, 'x'), "\xe2\x96"}}};
  CompletionContext context_{
      .tokenizer = tokenizer_, .context_size = 64, .model = "m", .defaults = {}};
};

TEST_F(TokenizeTest, HasTheShapeOfVllm) {
  EXPECT_EQ(encoded(R"({"prompt": "ab"})"),
            json::parse(R"({"count": 3, "max_model_len": 64, "tokens": [0, 99, 100]})"));
  EXPECT_EQ(encoded(R"({"prompt": "ab", "add_special_tokens": false, "model": "m"})")["count"], 2);
  EXPECT_EQ(encoded(R"({"prompt": ""})")["tokens"], json::parse("[0]"));
  EXPECT_EQ(encoded(R"({"prompt": "<s>"})")["count"], 4);  // text, not a control token
}

TEST_F(TokenizeTest, AndBack) {
  EXPECT_EQ(decoded(R"({"tokens": [0, 99, 100]})"), "<s>ab");
  EXPECT_EQ(decoded(R"({"tokens": [], "model": "m"})"), "");
  EXPECT_EQ(decoded(R"({"tokens": [259, 131]})"), "\xe2\x96\x81");
  EXPECT_EQ(decoded(R"({"tokens": [259]})"), "\xef\xbf\xbd");
}

TEST_F(TokenizeTest, WhatIsWrongWithABody) {
  for (const char* body :
       {"", "[]", "5", "{}", R"({"prompt": 5})", R"({"prompt": ["a"]})", R"({"prompt": null})",
        R"({"prompt": "a", "add_special_tokens": 1})", R"({"prompt": "a", "tokens": []})",
        R"({"prompt": "a", "prompt": "b"})", "{\"prompt\": \"\xff\"}"}) {
    EXPECT_TRUE(throws_error([&] { encoded(body); }, "")) << body;
  }
  for (const char* body :
       {"", "[]", "5", "{}", R"({"tokens": null})", R"({"tokens": 5})", R"({"tokens": "a"})",
        R"({"tokens": [1.5]})", R"({"tokens": ["a"]})", R"({"tokens": [[1]]})",
        R"({"tokens": [{"a": 1}]})", R"({"tokens": {"a": 1}})", R"({"tokens": [-1]})",
        R"({"tokens": [null]})", R"({"tokens": [1], "tokens": [2]})",
        R"({"tokens": [1], "model": {"model": "m"}})", R"({"tokens": [1], "prompt": "a"})"}) {
    EXPECT_TRUE(throws_error([&] { decoded(body); }, "")) << body;
  }
  EXPECT_THROW(encoded(R"({"prompt": "a", "model": "x"})"), UnknownModel);
  EXPECT_THROW(decoded(R"({"tokens": [1], "model": "x"})"), UnknownModel);
}

TEST_F(TokenizeTest, IdsAreOfTheVocabulary) {
  EXPECT_EQ(decoded(R"({"tokens": [257]})"), "\xef\xbf\xbd");
  EXPECT_TRUE(throws_error([&] { decoded(R"({"tokens": [260]})"); },
                           "tokens holds 260, which is outside the vocabulary of 260"));
  EXPECT_TRUE(throws_error([&] { decoded(R"({"tokens": [99999999999]})"); }, "tokens holds"));
}

TEST_F(TokenizeTest, TokensAreLimited) {
  const auto body = [](size_t bytes) {
    return R"({"prompt": ")" + std::string(bytes, 'x') + "\"}";
  };
  EXPECT_TRUE(tokenize(context_, body(kMaxTokenized - 1)).starts_with(R"({"count":1048576,)"));
  EXPECT_TRUE(throws_error([&] { encoded(body(kMaxTokenized)); },
                           "prompt has 1048576 bytes, which are more than 1048576 tokens"));
  EXPECT_GT(detokenize(context_, ids(kMaxTokenized, "99")).size(), kMaxTokenized);
  EXPECT_TRUE(throws_error([&] { decoded(ids(kMaxTokenized + 1, "99")); },
                           "tokens has more than 1048576 elements"));
}

TEST_F(TokenizeTest, TheTextIsLimited) {
  EXPECT_GT(detokenize(context_, ids(kMaxDetokenizedBytes / 64, "258")).size(),
            kMaxDetokenizedBytes);
  EXPECT_TRUE(throws_error([&] { decoded(ids(kMaxDetokenizedBytes / 64 + 1, "258")); },
                           "the text has more than 16777216 bytes"));
}

}  // namespace
}  // namespace sparsellm
