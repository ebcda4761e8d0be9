#include "tools/bench/completion_chunk.h"

#include <gtest/gtest.h>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using testing::throws_error;

TEST(CompletionChunk, OfAToken) {
  const CompletionChunk chunk = read_completion_chunk(
      R"({"id":"cmpl-1","object":"text_completion","created":7,"model":"m","choices":[{"index":0,)"
      R"("text":" a","logprobs":{"tokens":[" a"],"token_logprobs":[-0.5],"top_logprobs":[{" a":-1}],)"
      R"("text_offset":[3]},"finish_reason":null}],"usage":null})");
  EXPECT_EQ(chunk.choices, 1);
  EXPECT_FALSE(chunk.generated_tokens);
  EXPECT_FALSE(chunk.error);
}

TEST(CompletionChunk, OfTheUsage) {
  const CompletionChunk chunk = read_completion_chunk(
      R"({"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":12,"total_tokens":17,)"
      R"("completion_tokens_details":{"completion_tokens":3}}})");
  EXPECT_EQ(chunk.choices, 0);
  EXPECT_EQ(chunk.generated_tokens, 12);
  EXPECT_FALSE(read_completion_chunk(R"({"usage":{"completion_tokens":"x"}})").generated_tokens);
}

TEST(CompletionChunk, OfAnError) {
  const auto error = [](const char* text) { return read_completion_chunk(text).error; };
  EXPECT_EQ(error(R"({"error":{"message":"the model is lost","type":"server_error"}})"),
            "the model is lost");
  EXPECT_EQ(error(R"({"error":"too long"})"), "too long");
  EXPECT_EQ(error(R"({"error":{"code":500}})"), "an error without a text");
  EXPECT_FALSE(error(R"({"error":null,"choices":[{"message":"m"}]})"));
}

TEST(CompletionChunk, RefusesWhatIsNone) {
  EXPECT_TRUE(throws_error([] { read_completion_chunk("{\"choices\":[{]}"); }, "invalid JSON"));
  EXPECT_TRUE(throws_error([] { read_completion_chunk("[1]"); }, "expected an object"));
  EXPECT_TRUE(throws_error([] { read_completion_chunk(""); }, "invalid JSON"));
}

TEST(CompletionChunk, TextOfARefusal) {
  EXPECT_EQ(refusal_text(R"({"error":{"message":"the API key is missing or wrong"}})"),
            "the API key is missing or wrong");
  EXPECT_EQ(refusal_text("<html>\n"), "\"<html>\\n\"");
  EXPECT_EQ(refusal_text(""), "no text");
}

}  // namespace
}  // namespace sparsellm
