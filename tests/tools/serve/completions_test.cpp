// Requests to /v1/completions from their bodies to their answers, with an engine and without HTTP.

#include "tools/serve/completions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/tools/serve/serve_fixture.h"
#include "tools/cli/interrupt.h"

namespace sparsellm {
namespace {

using nlohmann::json;
using testing::KeptExchange;
using testing::ServedTiny;
using testing::StepGate;
using testing::value_of;

const char kStory[] = R"({"prompt": "Once upon", "max_tokens": 6, "ignore_eos": true})";
const char kStream[] =
    R"({"prompt": "Once upon", "max_tokens": 6, "ignore_eos": true, "stream": true})";
// Does not end by itself.
const char kLong[] =
    R"({"prompt": "Once upon", "max_tokens": 400, "ignore_eos": true, "stream": true})";

using Shared = std::shared_ptr<KeptExchange>;

std::string text_of(const Shared& exchange) {
  std::string text;
  for (const json& event : exchange->events()) {
    for (const json& choice : event["choices"]) {
      text += choice["text"].get<std::string>();
    }
  }
  return text;
}

// All pages are free, and nothing is counted any more.
void expect_idle(ServedTiny& served) {
  EXPECT_TRUE(served.completions.empty());
  served.stop();
  EXPECT_EQ(served.engine.engine.free_pages(), served.engine.engine.total_pages());
}

TEST(Completions, AnswersWithWhatTheEngineGenerates) {
  ServedTiny served;
  const Shared exchange = served.ask(kStory);
  ASSERT_TRUE(exchange->response);
  EXPECT_EQ(exchange->response->status, 200);
  const json body = exchange->json();
  EXPECT_EQ(body["usage"]["completion_tokens"], 6);
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  expect_idle(served);
  Request request;
  request.prompt = served.context->tokenizer.encode("Once upon", {});
  request.max_tokens = 6;
  request.ignore_eos = true;
  EXPECT_EQ(body["choices"][0]["text"], served.engine.engine.generate({request})[0].text);
  EXPECT_EQ(body["usage"]["prompt_tokens"], std::ssize(request.prompt));
}

TEST(Completions, AStreamHasAnEventForEachToken) {
  ServedTiny served;
  const std::string text = served.ask(kStory)->json()["choices"][0]["text"];
  const Shared exchange = served.ask(kStream);
  ASSERT_TRUE(exchange->stream);
  EXPECT_EQ(exchange->stream->status, 200);
  EXPECT_EQ(exchange->stream->content_type, "text/event-stream; charset=utf-8");
  EXPECT_EQ(value_of(*exchange->stream, "Cache-Control"), "no-cache");
  EXPECT_EQ(exchange->events().size(), 6u);
  EXPECT_EQ(text_of(exchange), text);
  EXPECT_TRUE(exchange->has_done());
  expect_idle(served);
}

// Writing the tokens of a step of many streams takes a while.
TEST(Completions, AFirstTokenIsWrittenBeforeThoseOfOthers) {
  ServedTiny served;
  served.start();
  std::string written;  // the streams in the order of their events, '|' between steps
  const Shared first = served.send(kLong);
  first->on_write = [&] { written += 'a'; };
  const auto run_until_written = [&](char stream) {
    return served.tasks.run_until([&] {
      written += '|';
      return written.find(stream) != std::string::npos;
    });
  };
  ASSERT_TRUE(run_until_written('a'));
  const Shared second = served.send(kStream);
  second->on_write = [&] { written += 'b'; };
  ASSERT_TRUE(run_until_written('b'));
  EXPECT_NE(written.find("|ba|"), std::string::npos) << written;
  EXPECT_EQ(written.find("ab"), std::string::npos) << written;
  first->leave();
  ASSERT_TRUE(served.wait_for(second));
}

// As load generators count them.
TEST(Completions, ATokenWhoseTextIsHeldBackIsAnEvent) {
  ServedTiny served;
  const std::string text = served.ask(kStory)->json()["choices"][0]["text"];
  ASSERT_GT(text.size(), 4u);
  json body = json::parse(kStream);
  // Held back until its end, and then it was another.
  body["stop"] = {text.substr(0, text.size() - 1) + "~never"};
  const Shared exchange = served.ask(body.dump());
  const std::vector<json> events = exchange->events();
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[0]["choices"][0]["text"], "");
  EXPECT_EQ(text_of(exchange), text);
}

TEST(Completions, UsageComesOnceAfterAllChoices) {
  ServedTiny served;
  const Shared exchange = served.ask(
      R"({"prompt": ["Once upon", "A", [5, 6]], "n": 2, "max_tokens": 4, "ignore_eos": true,
          "stream": true, "echo": true, "stream_options": {"include_usage": true}})");
  const std::vector<json> events = exchange->events();
  ASSERT_EQ(events.size(), 3u * 2 * 4 + 1);
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_TRUE(events[i]["usage"].is_null());
    EXPECT_EQ(events[i]["choices"].size(), 1u);
  }
  const json usage = events.back()["usage"];
  EXPECT_TRUE(events.back()["choices"].empty());
  EXPECT_EQ(usage["completion_tokens"], 24);
  const auto& tokenizer = served.context->tokenizer;
  const size_t prompts =
      tokenizer.encode("Once upon", {}).size() + tokenizer.encode("A", {}).size() + 2;
  EXPECT_EQ(usage["prompt_tokens"], prompts);
  EXPECT_EQ(usage["total_tokens"], prompts + 24);
  EXPECT_TRUE(exchange->has_done());
  EXPECT_EQ(served.metrics.generation_tokens, 24);
  EXPECT_EQ(served.metrics.prompt_tokens, static_cast<int64_t>(prompts));
}

// Whatever bytes the model says: text[offset] is where a token's text begins.
TEST(Completions, OffsetsAreThoseOfTheText) {
  ServedTiny served;
  for (const char* prompt : {"\"Once upon\"", "[496, 79, 110, 200, 497, 201]"}) {
    for (const char* more :
         {"", R"(, "echo": true)", R"(, "skip_special_tokens": false)",
          R"(, "echo": true, "skip_special_tokens": false)", R"(, "echo": true, "stream": true)"}) {
      const std::string body = std::string(R"({"logprobs": 0, "max_tokens": 40, "temperature": 2,
          "seed": 3, "ignore_eos": true, "prompt": )") +
                               prompt + more + "}";
      const Shared exchange = served.ask(body);
      std::string text;
      std::vector<int64_t> offsets;
      std::vector<std::string> tokens;
      for (const json& event :
           exchange->response ? std::vector<json>{exchange->json()} : exchange->events()) {
        const json& choice = event["choices"][0];
        text += choice["text"].get<std::string>();
        for (const json& offset : choice["logprobs"]["text_offset"]) {
          offsets.push_back(offset);
        }
        for (const json& token : choice["logprobs"]["tokens"]) {
          tokens.push_back(token);
        }
      }
      const int64_t characters = count_characters(text);
      std::vector<size_t> begins;  // bytes
      for (size_t i = 0; i < text.size(); ++i) {
        if ((text[i] & 0xc0) != 0x80) {
          begins.push_back(i);
        }
      }
      ASSERT_EQ(offsets.size(), tokens.size());
      EXPECT_TRUE(std::is_sorted(offsets.begin(), offsets.end())) << body;
      EXPECT_LE(offsets.back(), characters) << body;
      const bool shows = body.find("skip_special") != std::string::npos;
      int checked = 0;
      for (size_t i = 0; i + 1 < tokens.size(); ++i) {
        const bool control = tokens[i].starts_with("<|");
        const bool hidden = control && (!shows || (i == 0 && prompt[0] == '"'));
        if (tokens[i].starts_with("bytes:") || hidden) {
          continue;
        }
        ASSERT_LT(offsets[i], characters) << body << tokens[i];
        EXPECT_EQ(text.substr(begins[static_cast<size_t>(offsets[i])]).rfind(tokens[i], 0), 0u)
            << body << " " << i << " " << tokens[i];
        ++checked;
      }
      EXPECT_GT(checked, 10) << body;
    }
  }
}

TEST(Completions, AStopTextEndsTheAnswer) {
  ServedTiny served;
  const std::string text = served.ask(kStory)->json()["choices"][0]["text"];
  json body = json::parse(kStory);
  body["stop"] = text.substr(text.size() / 2, 1);
  const json choice = served.ask(body.dump())->json()["choices"][0];
  EXPECT_EQ(choice["text"], text.substr(0, text.find(body["stop"].get<std::string>())));
  EXPECT_EQ(choice["finish_reason"], "stop");
}

TEST(Completions, WhatIsWrongWithABodyIs400) {
  ServedTiny served;
  for (const char* body :
       {"", "{", "[]", R"({"prompt": ""})", R"({"prompt": "a", "tools": []})",
        R"({"prompt": "a", "n": 0})", R"({"prompt": "a", "logit_bias": {"500": 1}})",
        R"({"prompt": [500]})", R"({"prompt": "a", "stop_token_ids": [500]})",
        R"({"prompt": "a", "max_tokens": 512})", "{\"prompt\": \"\xff\"}"}) {
    const Shared exchange = served.ask(body);
    ASSERT_TRUE(exchange->response) << body;
    EXPECT_EQ(exchange->response->status, 400) << body;
    EXPECT_EQ(exchange->json()["error"]["code"], 400);
    EXPECT_EQ(exchange->json()["error"]["type"], "invalid_request_error");
    EXPECT_NE(exchange->error(), "") << body;
    EXPECT_EQ(exchange->error().find('\n'), std::string::npos) << body;
    EXPECT_EQ(value_of(*exchange->response, "Retry-After"), "") << body;
  }
  expect_idle(served);
}

TEST(Completions, AnotherModelIs404) {
  ServedTiny served;
  const Shared exchange = served.ask(R"({"prompt": "a", "model": "huge"})");
  EXPECT_EQ(exchange->response->status, 404);
  EXPECT_EQ(exchange->json()["error"]["type"], "not_found_error");
}

// None of several prompts is left in the engine.
TEST(Completions, WhatTheEngineRefusesIs400) {
  ServedTiny served;
  for (const char* more : {"", R"(, "stream": true)"}) {
    const Shared exchange =
        served.ask(std::string(R"({"prompt": [[5], [6], [600]], "n": 3)") + more + "}");
    ASSERT_TRUE(exchange->response);
    EXPECT_EQ(exchange->response->status, 400);
    EXPECT_NE(exchange->error().find("600"), std::string::npos) << exchange->error();
  }
  EXPECT_EQ(served.ask(kStory)->response->status, 200);
  expect_idle(served);
}

// As long as nobody else asks for something, too.
TEST(Completions, WhatCanNeverFitIs400) {
  ServedTiny::Options options{.limits = {.samples = 3}, .engine = {}};
  options.engine.kv_tokens = 64;
  ServedTiny served(options);
  for (const char* body : {R"({"prompt": "a", "n": 4})", R"({"prompt": ["a", "a"], "n": 2})",
                           R"({"prompt": "a", "max_tokens": 100})"}) {
    const Shared exchange = served.ask(body);
    EXPECT_EQ(exchange->response->status, 400) << body;
    EXPECT_EQ(value_of(*exchange->response, "Retry-After"), "");
  }
  EXPECT_EQ(served.ask(R"({"prompt": "a", "n": 3, "max_tokens": 2})")->response->status, 200);
  EXPECT_EQ(served.metrics.refused, 0);
  expect_idle(served);
}

TEST(Completions, MoreMemoryOrTokensThanThereEverAreIs400) {
  ServedTiny tokens({.limits = {.prompt_tokens = 3}});
  EXPECT_EQ(tokens.ask(R"({"prompt": [5, 6, 7, 8]})")->response->status, 400);
  EXPECT_EQ(tokens.ask(R"({"prompt": [5, 6, 7], "max_tokens": 1})")->response->status, 200);
  ServedTiny memory({.limits = {.bytes = 1000}});
  EXPECT_EQ(memory.ask(R"({"prompt": [5], "max_tokens": 8, "logprobs": 9})")->response->status,
            400);
  EXPECT_EQ(memory.ask(R"({"prompt": [5], "max_tokens": 1, "logprobs": 9})")->response->status,
            200);
}

TEST(Completions, WhatFitsLaterIs503) {
  ServedTiny served({.limits = {.samples = 3}});
  const Shared first = served.send(R"({"prompt": "a", "n": 2, "max_tokens": 2})");
  ASSERT_TRUE(served.tasks.run_until([&] { return bool{first->on_gone}; }));
  const Shared second = served.send(R"({"prompt": "a", "n": 2})");
  ASSERT_TRUE(served.wait_for(second));
  EXPECT_EQ(second->response->status, 503);
  EXPECT_EQ(value_of(*second->response, "Retry-After"), "1");
  EXPECT_EQ(second->json()["error"]["type"], "server_error");
  EXPECT_EQ(served.metrics.refused, 1);
  served.start();
  EXPECT_TRUE(served.wait_for(first));
  EXPECT_EQ(first->response->status, 200);
  EXPECT_EQ(served.ask(R"({"prompt": "a", "n": 2, "max_tokens": 2})")->response->status, 200);
  expect_idle(served);
}

TEST(Completions, TokensAndMemoryOfOthersAreCounted) {
  ServedTiny served({.limits = {.prompt_tokens = 3, .bytes = 980}});
  const Shared first = served.send(R"({"prompt": [5, 6], "max_tokens": 1})");
  ASSERT_TRUE(served.tasks.run_until([&] { return bool{first->on_gone}; }));
  const Shared tokens = served.send(R"({"prompt": [5, 6], "max_tokens": 1})");
  const Shared memory = served.send(R"({"prompt": [5], "max_tokens": 1, "logprobs": 14})");
  ASSERT_TRUE(served.wait_for(tokens) && served.wait_for(memory));
  EXPECT_EQ(tokens->response->status, 503);
  EXPECT_EQ(memory->response->status, 503);
  first->leave();
  EXPECT_EQ(served.ask(R"({"prompt": [5], "max_tokens": 1, "logprobs": 14})")->response->status,
            200);
  expect_idle(served);
}

// Bodies that wait for a worker are bounded, too.
TEST(Completions, MoreBodiesThanMayWaitAre503) {
  ServedTiny served({.max_tasks = 2});
  std::promise<void> end;
  ASSERT_TRUE(served.workers.post([&] { end.get_future().wait(); }));
  const Shared first = served.send(kStory);
  const Shared second = served.send(kStory);
  ASSERT_TRUE(second->response);
  EXPECT_EQ(second->response->status, 503);
  EXPECT_EQ(value_of(*second->response, "Retry-After"), "1");
  EXPECT_EQ(served.metrics.refused, 1);
  end.set_value();
  served.start();
  EXPECT_TRUE(served.wait_for(first));
  EXPECT_EQ(first->response->status, 200);
  expect_idle(served);
}

TEST(Completions, HeadersOfThePagesOriginAreOnEveryAnswer) {
  const std::vector<HttpHeader> cors{{.name = "Access-Control-Allow-Origin", .value = "*"}};
  ServedTiny served({.limits = {.samples = 2}, .headers = cors});
  const auto origin_of = [](const Shared& exchange) {
    return value_of(exchange->response ? *exchange->response : *exchange->stream,
                    "Access-Control-Allow-Origin");
  };
  EXPECT_EQ(origin_of(served.ask(kStory)), "*");
  EXPECT_EQ(origin_of(served.ask(kStream)), "*");
  EXPECT_EQ(origin_of(served.ask("{")), "*");
  EXPECT_EQ(origin_of(served.ask(R"({"prompt": [600]})")), "*");
  served.completions.end_all(503, "the end");
  EXPECT_EQ(origin_of(served.ask(kStory)), "*");
}

TEST(Completions, AClientThatLeavesAStreamIsNoLongerServed) {
  ServedTiny served;
  served.start();
  const Shared exchange = served.send(kLong);
  exchange->on_write = [&] {
    if (exchange->writes.size() == 3) {
      exchange->leave();
    }
  };
  ASSERT_TRUE(served.tasks.run_until([&] { return exchange->gone(); }));
  EXPECT_EQ(served.metrics.cancelled, 1);
  EXPECT_EQ(served.ask(kStory)->response->status, 200);
  EXPECT_EQ(exchange->writes.size(), 3u);
  expect_idle(served);
}

TEST(Completions, AClientMayLeaveWhileItsBodyIsRead) {
  ServedTiny served;
  const Shared exchange = served.send(kStory);
  exchange->leave();
  ASSERT_TRUE(served.tasks.run_until([&] { return served.completions.empty(); }));
  EXPECT_EQ(served.metrics.cancelled, 1);
  expect_idle(served);
}

TEST(Completions, AClientMayLeaveWhileItWaits) {
  ServedTiny::Options options{.limits = {}, .engine = {}};
  options.engine.max_requests = 1;
  ServedTiny served(options);
  const Shared first = served.send(kLong);
  ASSERT_TRUE(served.tasks.run_until([&] { return bool{first->on_gone}; }));
  const Shared second = served.send(kLong);
  ASSERT_TRUE(served.tasks.run_until([&] { return bool{second->on_gone}; }));
  second->leave();
  served.start();
  ASSERT_TRUE(served.tasks.run_until([&] { return first->writes.size() > 3; }));
  first->leave();
  EXPECT_EQ(served.ask(kStory)->response->status, 200);
  EXPECT_EQ(served.metrics.cancelled, 2);
  EXPECT_TRUE(second->writes.empty());
  expect_idle(served);
}

TEST(Completions, AStreamThatWaitsGetsComments) {
  using std::chrono::seconds;
  ServedTiny served;
  served.start();
  const Shared exchange = served.send(kLong);
  ASSERT_TRUE(served.tasks.run_until([&] { return !exchange->writes.empty(); }));
  const size_t before = exchange->writes.size();
  const auto now = std::chrono::steady_clock::now();
  served.completions.tick(now + seconds(14));
  EXPECT_EQ(exchange->writes.size(), before);
  served.completions.tick(now + seconds(16));
  ASSERT_EQ(exchange->writes.size(), before + 1);
  EXPECT_EQ(exchange->writes.back(), ": waiting\n\n");
  served.completions.tick(now + seconds(30));
  EXPECT_EQ(exchange->writes.size(), before + 1);
  served.completions.tick(now + seconds(32));
  EXPECT_EQ(exchange->writes.size(), before + 2);
  exchange->leave();
}

TEST(Completions, WhatTakesTooLongEnds) {
  using std::chrono::seconds;
  ServedTiny served({.limits = {.timeout = seconds(100)}});
  const Shared waits = served.send(kStory);
  ASSERT_TRUE(served.tasks.run_until([&] { return bool{waits->on_gone}; }));
  const auto now = std::chrono::steady_clock::now();
  served.completions.tick(now + seconds(99));
  EXPECT_FALSE(waits->done());
  served.completions.tick(now + seconds(101));
  ASSERT_TRUE(waits->response);
  EXPECT_EQ(waits->response->status, 503);
  served.start();
  const Shared stream = served.send(kLong);
  ASSERT_TRUE(served.tasks.run_until([&] { return !stream->writes.empty(); }));
  served.completions.tick(std::chrono::steady_clock::now() + seconds(101));
  EXPECT_TRUE(stream->ended);
  EXPECT_FALSE(stream->has_done());
  EXPECT_EQ(stream->error(), "the request took longer than --request-timeout");
  EXPECT_EQ(served.metrics.cancelled, 2);
  EXPECT_EQ(served.ask(kStory)->response->status, 200);
  expect_idle(served);
}

TEST(Completions, TheEndIsToldToAll) {
  ServedTiny::Options options{.limits = {}, .engine = {}};
  options.engine.max_requests = 1;
  ServedTiny served(options);
  StepGate gate(served.engine);
  gate.allow(3);
  served.start();
  const Shared stream = served.send(kLong);
  ASSERT_TRUE(served.tasks.run_until([&] { return !stream->writes.empty(); }));
  const Shared waits = served.send(kStory);
  ASSERT_TRUE(served.tasks.run_until([&] { return bool{waits->on_gone}; }));
  const Shared read = served.send(kStory);
  served.completions.end_all(503, "the server is shutting down");
  EXPECT_TRUE(stream->ended);
  EXPECT_EQ(stream->error(), "the server is shutting down");
  ASSERT_TRUE(waits->response);
  EXPECT_EQ(waits->response->status, 503);
  EXPECT_FALSE(served.completions.empty());  // a body is being read
  ASSERT_TRUE(served.wait_for(read));
  EXPECT_EQ(read->response->status, 503);
  EXPECT_EQ(read->error(), "the server is shutting down");
  EXPECT_TRUE(served.completions.empty());
  const Shared late = served.send(kStory);
  EXPECT_EQ(late->response->status, 503);
  gate.open();
  served.stop();
}

// Of those that nothing was computed for.
TEST(Completions, AStepThatThrowsIsLoggedAndOthersFollow) {
  ServedTiny served;
  int failures = 1;
  served.engine.before_step = [&] {
    if (served.engine.steps > 2 && failures-- > 0) {
      throw std::runtime_error("a step fails");
    }
  };
  EXPECT_EQ(served.ask(kStory)->response->status, 200);
  served.stop();
  EXPECT_EQ(served.logged, std::vector<std::string>{"a step fails"});
}

// NaN in the logits, or a step that fails as a whole.
TEST(Completions, ARequestThatFailsInTheEngineIs500) {
  for (const bool streams : {false, true}) {
    ServedTiny served;
    const Shared exchange = served.send(streams ? kStream : kStory);
    ASSERT_TRUE(served.tasks.run_until([&] { return bool{exchange->on_gone}; }));
    LoopEvents events;
    events.errors = {"the model's logits contain NaN or infinity"};
    events.events.push_back({.ticket = 1, .kind = LoopEvents::Kind::accepted});
    events.events.push_back({.ticket = 1, .finish = FinishReason::error, .error = 0});
    served.completions.take(events);
    EXPECT_TRUE(exchange->done());
    EXPECT_EQ(exchange->error(), events.errors[0]);
    EXPECT_EQ(streams, exchange->stream.has_value());
    EXPECT_TRUE(streams || exchange->response->status == 500);
    EXPECT_FALSE(exchange->has_done());
    EXPECT_EQ(served.metrics.failed, 1);
    EXPECT_TRUE(served.completions.empty());
    served.start();  // the request was cancelled
    served.stop();
  }
}

TEST(Completions, WhatALostDeviceEndsIs503) {
  ServedTiny served;
  served.engine.before_submit = [&] {
    served.engine.lost = "device 0 is lost";
    throw DeviceLost("device 0 is lost");
  };
  const Shared exchange = served.ask(kStory);
  EXPECT_EQ(exchange->response->status, 503);
  EXPECT_EQ(exchange->error(), "device 0 is lost");
  // What was in a step.
  ServedTiny other;
  const Shared begun = other.send(kStory);
  ASSERT_TRUE(other.tasks.run_until([&] { return bool{begun->on_gone}; }));
  LoopEvents events;
  events.lost = true;
  events.errors = {"device 0 is lost"};
  events.events.push_back({.ticket = 1, .finish = FinishReason::error, .error = 0});
  other.completions.take(events);
  EXPECT_EQ(begun->response->status, 503);
}

TEST(Completions, WantOfMemoryInTheEngineIs500AndNoEnd) {
  ServedTiny served;
  int failures = 1;
  served.engine.before_submit = [&] {
    if (failures-- > 0) {
      throw std::bad_alloc();
    }
  };
  const Shared exchange = served.ask(kStory);
  EXPECT_EQ(exchange->response->status, 500);
  EXPECT_EQ(exchange->error(), "out of memory");
  EXPECT_EQ(served.ask(kStory)->response->status, 200);
  expect_idle(served);
}

// A tokenizer that finds no memory for a text.
class GreedyTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions&) const override {
    if (text == "large") {
      throw std::bad_alloc();
    }
    if (text == "odd") {
      throw std::length_error("an odd text");
    }
    return {5, 6};
  }
  std::string token_bytes(int32_t, bool) const override { return "x"; }
  bool strips_leading_space() const override { return false; }
  int64_t vocab_size() const override { return 500; }
  std::optional<int32_t> bos_id() const override { return {}; }
  std::optional<int32_t> eos_id() const override { return {}; }
};

TEST(Completions, WantOfMemoryWhileABodyIsReadIsNoEnd) {
  const GreedyTokenizer tokenizer;
  ServedTiny served({.tokenizer = &tokenizer});
  const Shared large = served.ask(R"({"prompt": "large"})");
  EXPECT_EQ(large->response->status, 503);
  EXPECT_EQ(large->error(), "out of memory");
  EXPECT_EQ(served.ask(R"({"prompt": "odd"})")->response->status, 500);
  EXPECT_EQ(served.ask(R"({"prompt": "small"})")->response->status, 200);
  expect_idle(served);
}

TEST(RefusalOf, SaysWhoIsToBlame) {
  const auto refused = [](auto error) {
    const Refusal refusal = refusal_of([&] { throw error; }).value_or(Refusal{});
    return std::pair(refusal.status, refusal.why);
  };
  EXPECT_FALSE(refusal_of([] {}));
  EXPECT_EQ(refused(UnknownModel("none")), std::pair(404, std::string("none")));
  EXPECT_EQ(refused(Error("bad")), std::pair(400, std::string("bad")));
  EXPECT_EQ(refused(std::bad_alloc()), std::pair(503, std::string("out of memory")));
  EXPECT_EQ(refused(Interrupted{}), std::pair(503, std::string("the server is shutting down")));
  EXPECT_EQ(refused(std::runtime_error("odd")), std::pair(500, std::string("odd")));
  EXPECT_EQ(refused(5).first, 500);
}

TEST(Completions, LatenciesAreCounted) {
  ServedTiny served;
  served.ask(kStory);
  served.ask(kStream);
  const std::string text = served.metrics.text({.engine = {}, .weights = {}});
  for (const char* line :
       {"vllm:time_to_first_token_seconds_count{model_name=\"tiny\"} 2\n",
        "vllm:inter_token_latency_seconds_count{model_name=\"tiny\"} 10\n",
        "vllm:e2e_request_latency_seconds_count{model_name=\"tiny\"} 2\n",
        "vllm:request_queue_time_seconds_count{model_name=\"tiny\"} 2\n",
        "vllm:generation_tokens_total{model_name=\"tiny\"} 12\n",
        "vllm:request_success_total{model_name=\"tiny\",finished_reason=\"length\"} 2\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
}

}  // namespace
}  // namespace sparsellm
