#include "tools/serve/completion_reply.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/byte_tokenizer.h"
#include "tools/serve/text_offsets.h"

namespace sparsellm {
namespace {

using nlohmann::json;
using testing::ByteTokenizer;

constexpr int32_t kText = ByteTokenizer::kFirstText;

TokenLogProbs scored(int32_t token, float log_prob, std::vector<TokenLogProb> top = {}) {
  return {.token = {.token = token, .log_prob = log_prob}, .top = std::move(top)};
}

// What the loop hands over.
struct Events {
  LoopEvents all = {};

  LoopEvents::Event& add(int32_t request, int32_t sample, std::string_view text) {
    LoopEvents::Event event{.request = request, .sample = sample};
    event.text_begin = static_cast<uint32_t>(all.text.size());
    all.text += text;
    event.text_end = static_cast<uint32_t>(all.text.size());
    all.events.push_back(event);
    return all.events.back();
  }
  LoopEvents::Event& token(int32_t id, std::string_view text, int32_t request = 0,
                           int32_t sample = 0) {
    LoopEvents::Event& event = add(request, sample, text);
    event.token = id;
    return event;
  }
  LoopEvents::Event& scored_token(const TokenLogProbs& log_probs, std::string_view text,
                                  int32_t request = 0, int32_t sample = 0) {
    LoopEvents::Event& event = token(log_probs.token.token, text, request, sample);
    event.log_probs = static_cast<int32_t>(all.log_probs.size());
    all.log_probs.push_back(log_probs);
    return event;
  }
  // Of the prompt, with the latest event.
  void prompt_log_probs(const std::vector<TokenLogProbs>& log_probs) {
    all.events.back().prompt_log_probs = static_cast<int32_t>(all.log_probs.size());
    all.events.back().prompt_log_probs_count = static_cast<int32_t>(log_probs.size());
    all.log_probs.insert(all.log_probs.end(), log_probs.begin(), log_probs.end());
  }
};

std::vector<std::string> add_all(CompletionReply& reply, const Events& events) {
  std::vector<std::string> chunks;
  for (const LoopEvents::Event& event : events.all.events) {
    reply.add(events.all, event, chunks.emplace_back());
  }
  return chunks;
}

// "data: {...}\n\n"
json event_of(const std::string& chunk) {
  EXPECT_TRUE(chunk.starts_with("data: ") && chunk.ends_with("\n\n")) << chunk;
  EXPECT_EQ(chunk.find('\n'), chunk.size() - 2) << chunk;
  return json::parse(chunk.substr(6));
}

ReplyFormat format(bool stream = false) {
  return {.id = "cmpl-1", .created = 12, .model = "m\"", .stream = stream, .prompt_tokens = 3};
}

class Reply : public ::testing::Test {
 protected:
  // The answer as one object, or put together from the chunks of a stream.
  json lists_of(ReplyFormat form, const Events& events, size_t prompts = 1,
                size_t choice = 0) const {
    form.log_probs = form.log_probs.value_or(1);
    CompletionReply whole(tokenizer_, prompts, form);
    add_all(whole, events);
    json result = json::parse(whole.body())["choices"][choice];
    form.stream = true;
    CompletionReply stream(tokenizer_, prompts, form);
    json joined = {{"text", ""}};
    for (const std::string& chunk : add_all(stream, events)) {
      const json part = event_of(chunk)["choices"][0];
      if (part["index"] == choice) {
        joined["text"] = joined["text"].get<std::string>() + part["text"].get<std::string>();
        for (const auto& [name, list] : part["logprobs"].items()) {
          for (const json& element : list) {
            joined["logprobs"][name].push_back(element);
          }
        }
      }
    }
    EXPECT_EQ(joined["text"], result["text"]);
    EXPECT_EQ(joined["logprobs"], result["logprobs"]) << "the stream is another";
    return result;
  }

  ByteTokenizer tokenizer_{
      {.texts = {"Once", " upon", "\xe2\x96", "\x81", " a", "\xc3\xbc", " w", "or", "ld"}}};
};

TEST_F(Reply, IsATextCompletion) {
  CompletionReply reply(tokenizer_, 1, format());
  Events events;
  events.token(kText, "Once");
  events.token(kText + 1, " upon").finish = FinishReason::length;
  for (const std::string& chunk : add_all(reply, events)) {
    EXPECT_EQ(chunk, "");
  }
  EXPECT_TRUE(reply.finished());
  EXPECT_EQ(json::parse(reply.body()), json::parse(R"(
      {"id": "cmpl-1", "object": "text_completion", "created": 12, "model": "m\"",
       "choices": [{"index": 0, "text": "Once upon", "logprobs": null, "finish_reason": "length"}],
       "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}})"));
}

TEST_F(Reply, EveryTokenIsAChunk) {
  CompletionReply reply(tokenizer_, 1, format(true));
  Events events;
  events.token(kText, "Once");
  events.token(kText + 2, "");  // half a character
  events.token(kText + 3, "\xe2\x96\x81").finish = FinishReason::stop;
  const std::vector<std::string> chunks = add_all(reply, events);
  ASSERT_EQ(chunks.size(), 3u);
  EXPECT_EQ(event_of(chunks[0]), json::parse(R"(
      {"id": "cmpl-1", "object": "text_completion", "created": 12, "model": "m\"",
       "choices": [{"index": 0, "text": "Once", "logprobs": null, "finish_reason": null}]})"));
  EXPECT_EQ(event_of(chunks[1])["choices"][0]["text"], "");
  EXPECT_EQ(event_of(chunks[2])["choices"][0]["text"], "\xe2\x96\x81");
  EXPECT_EQ(event_of(chunks[2])["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(reply.stream_end(), "data: [DONE]\n\n");
}

TEST_F(Reply, UsageIsTheLastEventOnce) {
  ReplyFormat form = format(true);
  form.samples = 2;
  form.include_usage = true;
  CompletionReply reply(tokenizer_, 2, form);
  Events events;
  for (const int32_t request : {0, 1}) {
    for (const int32_t sample : {0, 1}) {
      events.token(kText, "Once", request, sample);
      events.token(kText, "Once", request, sample).finish = FinishReason::length;
    }
  }
  for (const std::string& chunk : add_all(reply, events)) {
    EXPECT_TRUE(event_of(chunk).at("usage").is_null());
  }
  const std::string end = reply.stream_end();
  const size_t done = end.find("data: [DONE]\n\n");
  ASSERT_EQ(done + 14, end.size());
  const json usage = event_of(end.substr(0, done));
  EXPECT_EQ(usage["choices"], json::array());
  EXPECT_EQ(usage["usage"],
            json::parse(R"({"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11})"));
}

// The prompt's tokens are not the completion's.
TEST_F(Reply, UsageWithEcho) {
  ReplyFormat form = format();
  form.samples = 2;
  form.echoes = {{.text = "Once upon", .tokens = {0, kText, kText + 1}}};
  form.log_probs = 0;
  CompletionReply reply(tokenizer_, 1, form);
  Events events;
  events.add(0, 0, "").finish = FinishReason::length;
  events.prompt_log_probs({scored(kText, -1), scored(kText + 1, -2)});
  events.add(0, 1, "").finish = FinishReason::length;
  add_all(reply, events);
  EXPECT_EQ(json::parse(reply.body())["usage"],
            json::parse(R"({"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3})"));
}

TEST_F(Reply, ChoicesAreInTheOrderOfPromptsAndSamples) {
  ReplyFormat form = format();
  form.samples = 2;
  CompletionReply reply(tokenizer_, 2, form);
  Events events;
  events.token(kText, "d", 1, 1).finish = FinishReason::stop;
  events.token(kText, "a", 0, 0).finish = FinishReason::length;
  events.token(kText, "c", 1, 0).finish = FinishReason::stop;
  EXPECT_EQ(reply.choices(), 4u);
  add_all(reply, events);
  EXPECT_FALSE(reply.finished());
  Events last;
  last.token(kText, "b", 0, 1).finish = FinishReason::stop;
  add_all(reply, last);
  EXPECT_TRUE(reply.finished());
  const json choices = json::parse(reply.body())["choices"];
  ASSERT_EQ(choices.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(choices[i]["index"], i);
    EXPECT_EQ(choices[i]["text"], std::string(1, static_cast<char>('a' + i)));
  }
}

TEST_F(Reply, LogProbsHaveTheLegacyShape) {
  Events events;
  events.scored_token(scored(kText, -0.5f, {{kText, -0.5f}, {kText + 1, -1.25f}}), "Once");
  events.scored_token(scored(kText + 1, -3.0f, {{kText, -0.5f}}), " upon").finish =
      FinishReason::length;
  EXPECT_EQ(lists_of(format(), events)["logprobs"], json::parse(R"(
      {"tokens": ["Once", " upon"], "token_logprobs": [-0.5, -3.0],
       "top_logprobs": [{"Once": -0.5, " upon": -1.25}, {"Once": -0.5, " upon": -3.0}],
       "text_offset": [0, 4]})"));
}

TEST_F(Reply, WithoutOthersTheChosenTokenIsTheTop) {
  Events events;
  events.scored_token(scored(kText, -0.5f), "Once").finish = FinishReason::length;
  ReplyFormat form = format();
  form.log_probs = 0;
  EXPECT_EQ(lists_of(form, events)["logprobs"]["top_logprobs"], json::parse(R"([{"Once": -0.5}])"));
}

TEST_F(Reply, InfinityIsTheSmallestFloat) {
  Events events;
  events.scored_token(scored(kText, -std::numeric_limits<float>::infinity()), "Once").finish =
      FinishReason::length;
  EXPECT_EQ(lists_of(format(), events)["logprobs"]["token_logprobs"][0].get<float>(),
            std::numeric_limits<float>::lowest());
}

// Two tokens may have one text: a byte and the letter that it is.
TEST_F(Reply, OfTokensWithOneTextTheLikelierCounts) {
  const ByteTokenizer tokenizer({.texts = {"a"}});
  ReplyFormat form = format();
  form.log_probs = 2;
  CompletionReply reply(tokenizer, 1, form);
  Events events;
  events.scored_token(scored(kText, -2.0f, {{'a' + 2, -0.5f}, {kText, -2.0f}}), "a").finish =
      FinishReason::length;
  add_all(reply, events);
  EXPECT_EQ(json::parse(reply.body())["choices"][0]["logprobs"]["top_logprobs"],
            json::parse(R"([{"a": -0.5}])"));
}

TEST_F(Reply, ShownTokens) {
  EXPECT_EQ(shown_token(tokenizer_, kText), "Once");
  EXPECT_EQ(shown_token(tokenizer_, kText + 2), "bytes:\\xe2\\x96");
  EXPECT_EQ(shown_token(tokenizer_, ByteTokenizer::kFirstByte + 0xff), "bytes:\\xff");
  EXPECT_EQ(shown_token(tokenizer_, ByteTokenizer::kBos), "<s>");
  EXPECT_EQ(shown_token(tokenizer_, 1'000'000), "");
}

TEST_F(Reply, TheFirstEchoedTokenHasNull) {
  ReplyFormat form = format();
  form.echoes = {{.text = "Once upon", .tokens = {0, kText, kText + 1}}};
  Events events;
  events.scored_token(scored(kText + 4, -4.0f), " a").finish = FinishReason::length;
  events.prompt_log_probs({scored(kText, -1.0f, {{kText + 4, -0.5f}}), scored(kText + 1, -2.0f)});
  const json choice = lists_of(form, events);
  EXPECT_EQ(choice["text"], "Once upon a");
  EXPECT_EQ(choice["logprobs"], json::parse(R"(
      {"tokens": ["<s>", "Once", " upon", " a"], "token_logprobs": [null, -1.0, -2.0, -4.0],
       "top_logprobs": [null, {" a": -0.5, "Once": -1.0}, {" upon": -2.0}, {" a": -4.0}],
       "text_offset": [0, 0, 4, 9]})"));
}

TEST_F(Reply, EverySampleEchoesThePrompt) {
  ReplyFormat form = format();
  form.samples = 2;
  form.echoes = {{.text = "Once", .tokens = {0, kText}}};
  Events events;
  events.scored_token(scored(kText + 1, -2.0f), " upon", 0, 0).finish = FinishReason::length;
  events.prompt_log_probs({scored(kText, -1.0f)});
  events.scored_token(scored(kText + 4, -3.0f), " a", 0, 1).finish = FinishReason::length;
  const json second = lists_of(form, events, 1, 1);
  EXPECT_EQ(second["text"], "Once a");
  EXPECT_EQ(second["logprobs"]["token_logprobs"], json::parse("[null, -1.0, -3.0]"));
  EXPECT_EQ(second["logprobs"]["text_offset"], json::parse("[0, 0, 4]"));
}

// BOS is not in the text that was sent, whatever is shown of what is generated.
TEST_F(Reply, OffsetsOfATextWithControlTokensShown) {
  ReplyFormat form = format();
  form.show_special_tokens = true;
  form.echoes = {{.text = "Once", .tokens = {0, kText}}};
  Events events;
  events.scored_token(scored(1, -2.0f), "</s>");
  events.prompt_log_probs({scored(kText, -1.0f)});
  events.scored_token(scored(kText + 1, -2.0f), " upon").finish = FinishReason::length;
  EXPECT_EQ(lists_of(form, events)["logprobs"]["text_offset"], json::parse("[0, 0, 4, 8]"));
}

TEST_F(Reply, OffsetsOfIdsWithControlTokensShown) {
  ReplyFormat form = format();
  form.show_special_tokens = true;
  form.echoes = {{.text = "<s>Once", .tokens = {0, kText}, .has_special_tokens = true}};
  Events events;
  events.scored_token(scored(kText + 1, -2.0f), " upon");
  events.prompt_log_probs({scored(kText, -1.0f)});
  events.scored_token(scored(kText + 4, -2.0f), " a").finish = FinishReason::length;
  EXPECT_EQ(lists_of(form, events)["logprobs"]["text_offset"], json::parse("[0, 3, 7, 12]"));
}

TEST_F(Reply, OffsetsCountCharacters) {
  Events events;
  events.scored_token(scored(kText + 5, -1.0f), "\xc3\xbc");
  events.scored_token(scored(kText + 2, -1.0f), "");
  events.scored_token(scored(kText + 3, -1.0f), "\xe2\x96\x81");
  events.scored_token(scored(kText + 2, -1.0f), "");
  events.scored_token(scored(kText, -1.0f), "\xef\xbf\xbdOnce").finish = FinishReason::length;
  EXPECT_EQ(lists_of(format(), events)["logprobs"]["text_offset"], json::parse("[0, 1, 1, 2, 3]"));
}

// What is left of a character at the prompt's end is not continued.
TEST_F(Reply, OffsetsAfterAPromptThatEndsInsideACharacter) {
  ReplyFormat form = format();
  form.echoes = {{.text = "Once\xef\xbf\xbd", .tokens = {kText, kText + 2}}};
  Events events;
  events.scored_token(scored(kText + 3, -1.0f), "\xef\xbf\xbd");
  events.prompt_log_probs({scored(kText + 2, -1.0f)});
  events.scored_token(scored(kText, -1.0f), "Once").finish = FinishReason::length;
  EXPECT_EQ(lists_of(form, events)["logprobs"]["text_offset"], json::parse("[0, 4, 5, 6]"));
}

TEST_F(Reply, TheSpaceInFrontOfAnEchoIsNotInTheText) {
  const ByteTokenizer tokenizer({.texts = {" Once", " upon"}, .strips_leading_space = true});
  ReplyFormat form = format();
  form.log_probs = 0;
  form.echoes = {{.text = "Once", .tokens = {0, kText}}};
  CompletionReply reply(tokenizer, 1, form);
  Events events;
  events.scored_token(scored(kText + 1, -1.0f), " upon");
  events.prompt_log_probs({scored(kText, -1.0f)});
  events.scored_token(scored(kText + 1, -1.0f), " upon").finish = FinishReason::length;
  add_all(reply, events);
  const json choice = json::parse(reply.body())["choices"][0];
  EXPECT_EQ(choice["text"], "Once upon upon");
  EXPECT_EQ(choice["logprobs"]["text_offset"], json::parse("[0, 0, 4, 9]"));
}

// Such as spaces that are joined: tokens and text differ inside of the prompt, and after it nothing
// does.
TEST_F(Reply, OffsetsAfterAPromptThatANormalizerHasChanged) {
  ReplyFormat form = format();
  form.echoes = {{.text = "Once", .tokens = {kText, kText + 1, kText + 1}}};
  Events events;
  events.scored_token(scored(kText + 4, -1.0f), " a");
  events.prompt_log_probs({scored(kText + 1, -1.0f), scored(kText + 1, -1.0f)});
  events.scored_token(scored(kText + 4, -1.0f), " a").finish = FinishReason::length;
  EXPECT_EQ(lists_of(form, events)["logprobs"]["text_offset"], json::parse("[0, 4, 4, 4, 6]"));
}

TEST_F(Reply, AStopTextStandsAtTheEnd) {
  ReplyFormat form = format();
  form.log_probs = 0;
  CompletionReply reply(tokenizer_, 1, form);
  Events events;
  events.scored_token(scored(kText, -1.0f), "Once");
  events.scored_token(scored(kText + 6, -1.0f), "");
  events.scored_token(scored(kText + 7, -1.0f), "");
  events.scored_token(scored(kText + 8, -1.0f), "").finish = FinishReason::stop;
  add_all(reply, events);
  const json choice = json::parse(reply.body())["choices"][0];
  EXPECT_EQ(choice["text"], "Once");
  EXPECT_EQ(choice["logprobs"]["text_offset"], json::parse("[0, 4, 4, 4]"));
}

TEST_F(Reply, TheEndOfTextStandsAtTheEnd) {
  Events events;
  events.scored_token(scored(kText + 2, -1.0f), "");
  events.scored_token(scored(1, -1.0f), "\xef\xbf\xbd").finish = FinishReason::stop;
  EXPECT_EQ(lists_of(format(), events)["logprobs"]["text_offset"], json::parse("[0, 1]"));
  ReplyFormat form = format();
  form.show_special_tokens = true;
  EXPECT_EQ(lists_of(form, events)["logprobs"]["text_offset"], json::parse("[0, 1]"));
}

TEST_F(Reply, TheFirstErrorIsKept) {
  CompletionReply reply(tokenizer_, 2, format(true));
  Events events;
  events.all.errors = {"first\nline", "second"};
  LoopEvents::Event& first = events.add(0, 0, "");
  first.finish = FinishReason::error;
  first.error = 0;
  LoopEvents::Event& second = events.add(1, 0, "");
  second.finish = FinishReason::error;
  second.error = 1;
  add_all(reply, events);
  EXPECT_EQ(reply.error(), "first\nline");
  const json error = event_of(reply.stream_error(500, reply.error()))["error"];
  EXPECT_EQ(error["code"], 500);
  EXPECT_EQ(error["type"], "server_error");
  EXPECT_EQ(error["message"], "first\nline");
}

TEST_F(Reply, NothingFollowsTheEndOfAChoice) {
  CompletionReply reply(tokenizer_, 1, format(true));
  Events events;
  events.token(kText, "Once").finish = FinishReason::length;
  events.token(kText, "Once");
  events.add(0, 0, "x").finish = FinishReason::cancelled;
  const std::vector<std::string> chunks = add_all(reply, events);
  EXPECT_NE(chunks[0], "");
  EXPECT_EQ(chunks[1], "");
  EXPECT_EQ(chunks[2], "");
  EXPECT_EQ(reply.generated(), 1);
}

}  // namespace
}  // namespace sparsellm
