// What listeners hear, whatever they do meanwhile: all of a request once, and one last event for
// each sample.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using testing::throws_error;

const char kLlama[] = "models/fable-llama-relu-8m";
const char kReplacement[] = "\xef\xbf\xbd";  // U+FFFD

// Most of the time it makes no difference what the model says.
Engine load_tiny(const EngineOptions& options = {}) {
  return Engine::load(testing::data("tiny/llama3"), options);
}

Request story(const Engine& engine, int64_t max_tokens) {
  Request request;
  request.prompt = engine.tokenizer().encode("Once upon a time there was a king", {});
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

Completion run(Engine& engine, const Request& request) {
  return engine.generate({request}).front();
}

// What was heard of a sample.
struct Heard {
  std::vector<int32_t> tokens;
  std::string text;
  std::vector<FinishReason> finish;

  void add(const TokenEvent& event) {
    // But one that was not taken: of that the listener hears once more.
    EXPECT_TRUE(finish.empty() || (finish.size() == 1 && event.finish == FinishReason::error))
        << "an event after the last one";
    if (event.token) {
      tokens.push_back(*event.token);
    }
    text += event.text;
    if (event.finish) {
      finish.push_back(*event.finish);
    }
  }
};
using HeardBySample = std::map<std::pair<int64_t, int32_t>, Heard>;

// Steps until nothing is left to do.
void drain(Engine& engine) {
  int steps = 0;
  while (steps < 2000 && engine.step()) {
    ++steps;
  }
  EXPECT_LT(steps, 2000) << "the requests do not end";
  EXPECT_EQ(engine.free_pages(), engine.total_pages());
}

TEST(Callbacks, ARefusedNumberOfSamplesIsOneCompletion) {
  Engine engine = load_tiny();
  const std::vector<int32_t> expected = run(engine, story(engine, 5)).tokens;
  for (int32_t samples : {INT_MAX, INT_MIN, -5, 0}) {
    Request bad = story(engine, 5);
    bad.samples = samples;
    const std::vector<Completion> done = engine.generate({story(engine, 5), bad, story(engine, 5)});
    ASSERT_EQ(done.size(), 3u) << samples;
    EXPECT_EQ(done[1].request, 1u);
    EXPECT_EQ(done[1].finish, FinishReason::error);
    EXPECT_NE(done[1].error.find(std::to_string(samples) + " samples"), std::string::npos)
        << done[1].error;
    for (size_t good : {0, 2}) {
      EXPECT_EQ(done[good].request, good);
      EXPECT_EQ(done[good].tokens, expected);
      EXPECT_EQ(done[good].error, "");
    }
    drain(engine);
  }
}

// Calls something when the last copy of a listener is destroyed.
class AtEnd {
 public:
  explicit AtEnd(std::function<void()> action) : action_(std::move(action)) {}
  ~AtEnd() { action_(); }
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;

 private:
  std::function<void()> action_;
};

TEST(Callbacks, WhatAListenerHoldsMayCallBackWhenItIsDestroyed) {
  constexpr size_t kRequests = 5;
  enum class Action { cancel_itself, cancel_all, submit };
  for (int steps_ahead : {0, 1}) {
    EngineOptions options;
    options.steps_ahead = steps_ahead;
    options.kv_tokens = 256;
    Engine engine = load_tiny(options);
    for (const Action action : {Action::cancel_itself, Action::cancel_all, Action::submit}) {
      for (bool cancelled : {false, true}) {  // or at their own end
        HeardBySample heard;
        std::vector<int64_t> ids;
        int destroyed = 0;
        const auto cancel_all = [&] {
          for (int64_t id : std::vector(ids)) {  // which grow meanwhile
            engine.cancel(id);
          }
        };
        const OnToken listen = [&](const TokenEvent& event) {
          heard[{event.request, event.sample}].add(event);
        };
        for (size_t i = 0; i < kRequests; ++i) {
          const auto at_end = std::make_shared<AtEnd>([&, i] {
            ++destroyed;
            if (action == Action::submit) {
              ids.push_back(engine.submit(story(engine, 3), listen));
            } else if (action == Action::cancel_itself) {
              engine.cancel(ids[i]);
            } else {
              cancel_all();
            }
          });
          Request request = story(engine, i < 2 ? 3 : static_cast<int64_t>(3 + i));
          request.samples = i % 2 == 0 ? 1 : 2;
          ids.push_back(
              engine.submit(request, [listen, at_end](const TokenEvent& event) { listen(event); }));
        }
        if (cancelled) {
          engine.step();
          cancel_all();
        }
        drain(engine);
        EXPECT_EQ(destroyed, static_cast<int>(kRequests));
        EXPECT_EQ(ids.size(), action == Action::submit ? 2 * kRequests : kRequests);
        EXPECT_EQ(heard.size(), ids.size() + kRequests / 2);  // some have two samples
        for (const auto& [key, sample] : heard) {
          EXPECT_EQ(sample.finish.size(), 1u) << "request " << key.first;
        }
      }
    }
  }
}

// What the callbacks of a request do.
struct Behaviour {
  const char* name;
  int32_t samples;
  std::function<void(Engine& engine, int64_t id)> on_logits;  // may be empty
  std::function<void(Engine& engine, const TokenEvent& event)> on_token;
  std::vector<FinishReason> finish;
};

TEST(Callbacks, ThereIsOneLastEvent) {
  const auto nothing = [](Engine&, const TokenEvent&) {};
  const auto cancel = [](Engine& engine, const TokenEvent& event) { engine.cancel(event.request); };
  const auto fail = [](Engine&, const TokenEvent&) { throw std::runtime_error("no more"); };
  const std::vector<Behaviour> behaviours{
      {"on_logits cancels and throws",
       1,
       [](Engine& engine, int64_t id) {
         engine.cancel(id);
         throw std::runtime_error("no more");
       },
       nothing,
       {FinishReason::cancelled}},
      {"on_logits throws, on_token cancels",
       1,
       [](Engine&, int64_t) { throw std::runtime_error("no more"); },
       cancel,
       {FinishReason::error}},
      {"on_logits throws, and on_token too",
       1,
       [](Engine&, int64_t) { throw std::runtime_error("no more"); },
       fail,
       {FinishReason::error}},
      {"on_token cancels and throws",
       1,
       {},
       [](Engine& engine, const TokenEvent& event) {
         engine.cancel(event.request);
         throw std::runtime_error("no more");
       },
       {FinishReason::cancelled, FinishReason::error}},
      {"on_token cancels and throws, of several samples",
       3,
       {},
       [](Engine& engine, const TokenEvent& event) {
         engine.cancel(event.request);
         throw std::runtime_error("no more");
       },
       {FinishReason::cancelled, FinishReason::error}},
      {"on_token always cancels", 1, {}, cancel, {FinishReason::cancelled}},
      {"on_token always cancels, of several samples", 3, {}, cancel, {FinishReason::cancelled}},
      {"on_token always throws", 3, {}, fail, {FinishReason::error}},
      {"the last event cancels",
       3,
       {},
       [](Engine& engine, const TokenEvent& event) {
         if (event.finish && event.sample == 2) {
           engine.cancel(event.request);
         }
       },
       {FinishReason::length}},
  };
  for (int steps_ahead : {0, 1}) {
    EngineOptions options;
    options.steps_ahead = steps_ahead;
    Engine engine = load_tiny(options);
    const std::vector<int32_t> expected = run(engine, story(engine, 4)).tokens;
    for (const Behaviour& behaviour : behaviours) {
      SCOPED_TRACE(behaviour.name);
      HeardBySample heard;
      int64_t id = 0;
      Request request = story(engine, 4);
      request.samples = behaviour.samples;
      if (behaviour.on_logits) {
        request.on_logits = [&](int64_t, std::span<const float>) {
          behaviour.on_logits(engine, id);
        };
      }
      const auto listen = [&](const TokenEvent& event) {
        heard[{event.request, event.sample}].add(event);
      };
      const int64_t before = engine.submit(story(engine, 4), listen);
      id = engine.submit(request, [&](const TokenEvent& event) {
        listen(event);
        behaviour.on_token(engine, event);
      });
      const int64_t after = engine.submit(story(engine, 4), listen);
      drain(engine);
      for (int32_t sample = 0; sample < behaviour.samples; ++sample) {
        const std::vector<FinishReason>& finish = heard[{id, sample}].finish;
        EXPECT_EQ(finish, behaviour.finish) << "sample " << sample;
      }
      for (int64_t other : {before, after}) {
        EXPECT_EQ((heard[{other, 0}].tokens), expected);
        EXPECT_EQ((heard[{other, 0}].finish), std::vector<FinishReason>{FinishReason::length});
      }
    }
  }
}

// Whoever could not take the last event must not count what it has for the whole result.
TEST(Callbacks, AListenerThatThrowsAtItsLastEventHearsTheError) {
  for (int steps_ahead : {0, 1}) {
    EngineOptions options;
    options.steps_ahead = steps_ahead;
    Engine engine = load_tiny(options);
    for (int throws : {1, 100}) {
      SCOPED_TRACE(throws);
      std::map<int32_t, std::vector<std::string>> heard;  // the last events
      std::map<int32_t, int> thrown;
      Request request = story(engine, 4);
      request.samples = 3;
      engine.submit(request, [&](const TokenEvent& event) {
        if (event.finish) {
          heard[event.sample].push_back(std::string(name_of(*event.finish)) + " " +
                                        std::string(event.error));
          EXPECT_EQ(event.token.has_value(), heard[event.sample].size() == 1);
          if (thrown[event.sample]++ < throws) {
            throw std::runtime_error("no more");
          }
        }
      });
      drain(engine);
      ASSERT_EQ(heard.size(), 3u);
      for (const auto& [sample, events] : heard) {
        EXPECT_EQ(events, (std::vector<std::string>{"length ", "error no more"})) << sample;
      }
      // generate() adds events up in a listener of its own, which does not throw.
      EXPECT_EQ(run(engine, story(engine, 4)).finish, FinishReason::length);
    }
  }
}

TEST(Callbacks, EachEventOfACancelMayCancelAgain) {
  Engine engine = load_tiny();
  HeardBySample heard;
  Request request = story(engine, 10);
  request.samples = 3;
  const int64_t id = engine.submit(request, [&](const TokenEvent& event) {
    heard[{event.request, event.sample}].add(event);
    if (event.finish) {
      engine.cancel(event.request);
    }
  });
  engine.step();
  engine.step();
  engine.cancel(id);
  EXPECT_EQ(heard.size(), 3u);
  for (const auto& [key, sample] : heard) {
    EXPECT_EQ(sample.tokens.size(), 2u);
    EXPECT_EQ(sample.finish, std::vector<FinishReason>{FinishReason::cancelled});
  }
  EXPECT_FALSE(engine.step());
  drain(engine);
}

TEST(Callbacks, MayCancelOthersOfTheSameStep) {
  constexpr size_t kRequests = 4;
  for (int steps_ahead : {0, 1}) {
    EngineOptions options;
    options.steps_ahead = steps_ahead;
    Engine engine = load_tiny(options);
    const std::vector<int32_t> expected = run(engine, story(engine, 6)).tokens;
    const int64_t prompt_length = std::ssize(story(engine, 6).prompt);
    for (bool by_logits : {false, true}) {
      for (size_t culprit = 0; culprit < kRequests; ++culprit) {
        HeardBySample heard;
        std::vector<int64_t> ids;
        const auto cancel_others = [&] {
          for (size_t i = 0; i < kRequests; ++i) {
            if (i != culprit) {
              engine.cancel(ids[i]);
            }
          }
        };
        for (size_t i = 0; i < kRequests; ++i) {
          Request request = story(engine, 6);
          if (by_logits) {
            request.on_logits = [&, i](int64_t position, std::span<const float>) {
              if (i == culprit && position == prompt_length + 1) {
                cancel_others();
              }
            };
          }
          ids.push_back(engine.submit(request, [&, i](const TokenEvent& event) {
            Heard& own = heard[{event.request, event.sample}];
            own.add(event);
            if (!by_logits && i == culprit && own.tokens.size() == 2) {
              cancel_others();
            }
          }));
        }
        drain(engine);
        for (size_t i = 0; i < kRequests; ++i) {
          const Heard& own = heard[{ids[i], 0}];
          EXPECT_EQ(own.finish, std::vector<FinishReason>{i == culprit ? FinishReason::length
                                                                       : FinishReason::cancelled});
          EXPECT_EQ(own.tokens.size() == 6, i == culprit);
          EXPECT_TRUE(std::equal(own.tokens.begin(), own.tokens.end(), expected.begin()));
        }
      }
    }
  }
}

TEST(Callbacks, OnLogitsGetsThePromptOnlyIfRequested) {
  struct Case {
    bool prompt_log_probs;
    bool score_prompt;
    int64_t max_tokens;
  };
  for (int64_t step_tokens : {2048, 40}) {
    EngineOptions options;
    options.step_tokens = step_tokens;
    Engine engine = load_tiny(options);
    for (const Case c : {Case{false, false, 2}, Case{true, false, 2}, Case{false, true, 2},
                         Case{true, true, 2}, Case{true, false, 0}, Case{true, true, 0}}) {
      Request request = story(engine, c.max_tokens);
      while (request.prompt.size() < 50) {
        request.prompt.push_back(static_cast<int32_t>(300 + request.prompt.size()));
      }
      request.log_probs = 0;
      request.prompt_log_probs = c.prompt_log_probs;
      request.score_prompt = c.score_prompt;
      std::vector<int64_t> positions;
      request.on_logits = [&](int64_t position, std::span<const float>) {
        positions.push_back(position);
      };
      const Completion done = run(engine, request);
      EXPECT_EQ(done.prompt_log_probs.size(), c.prompt_log_probs ? 49u : 0u);
      std::vector<int64_t> expected;
      for (int64_t i = c.score_prompt ? 0 : 49; i < 50 + std::max<int64_t>(0, c.max_tokens - 1);
           ++i) {
        expected.push_back(i);
      }
      EXPECT_EQ(positions, expected) << c.prompt_log_probs << c.score_prompt << c.max_tokens;
    }
  }
}

TEST(Callbacks, RefusesCallbacksThatWouldNeverBeCalled) {
  Engine engine = load_tiny();
  Request request = story(engine, 3);
  request.score_prompt = true;
  EXPECT_TRUE(throws_error([&] { engine.submit(request, {}); }, "score_prompt"));
  request = story(engine, 3);
  request.stop_token_ids.assign(1024, 5);
  EXPECT_EQ(run(engine, request).error, "");
  request.stop_token_ids.push_back(5);
  EXPECT_TRUE(throws_error([&] { engine.submit(request, {}); }, "1025 stop tokens"));
  drain(engine);
}

TEST(Callbacks, StopsOnTheLastTokenThatIsAllowed) {
  Engine plain = Engine::load(testing::data(kLlama), {});
  const Completion free_running = run(plain, story(plain, 12));
  // A place whose token is new there, and likewise its text.
  const auto is_new = [&](size_t at) {
    const auto begin = free_running.tokens.begin();
    return std::find(begin, begin + static_cast<int64_t>(at), free_running.tokens[at]) ==
           begin + static_cast<int64_t>(at);
  };
  size_t last = free_running.tokens.size() - 1;
  while (!is_new(last)) {
    --last;
  }
  const std::vector<int32_t> expected(free_running.tokens.begin(),
                                      free_running.tokens.begin() + static_cast<int64_t>(last) + 1);
  const std::string before = run(plain, story(plain, static_cast<int64_t>(last))).text;
  const std::string whole = run(plain, story(plain, static_cast<int64_t>(last) + 1)).text;
  ASSERT_GT(whole.size(), before.size());

  // The same model, with this token declared the end of the text.
  const testing::TempDir directory;
  for (const auto& entry : std::filesystem::directory_iterator(testing::data(kLlama))) {
    std::filesystem::create_symlink(entry.path(), directory.path() / entry.path().filename());
  }
  directory.write("generation_config.json",
                  fmt::format(R"({{"eos_token_id": [{}]}})", expected.back()));

  struct Case {
    const char* name;
    std::filesystem::path model;
    std::function<void(Request&)> change;
    std::string text;
    FinishReason finish;
  };
  const std::string stop = whole.substr(before.size() - 4);  // ends with the text of the last token
  const std::vector<Case> cases{
      {"EOS", directory.path(), [](Request& r) { r.ignore_eos = false; }, before,
       FinishReason::stop},
      {"a stop token", testing::data(kLlama),
       [&](Request& r) { r.stop_token_ids = {expected.back()}; }, before, FinishReason::stop},
      {"a stop text", testing::data(kLlama), [&](Request& r) { r.stop = {stop}; },
       whole.substr(0, whole.find(stop)), FinishReason::stop},
      {"nothing", testing::data(kLlama), [](Request&) {}, whole, FinishReason::length},
  };
  for (int steps_ahead : {0, 1}) {
    for (const Case& c : cases) {
      EngineOptions options;
      options.steps_ahead = steps_ahead;
      Engine engine = Engine::load(c.model, options);
      Request request = story(engine, std::ssize(expected));
      c.change(request);
      const Completion done = run(engine, request);
      EXPECT_EQ(done.tokens, expected) << c.name;
      EXPECT_EQ(done.text, c.text) << c.name;
      EXPECT_EQ(done.finish, c.finish) << c.name;
    }
  }
}

// The token that stands for one byte.
int32_t byte_token(const Engine& engine, char byte) {
  for (int32_t id = 0; id < engine.tokenizer().vocab_size(); ++id) {
    if (engine.tokenizer().token_bytes(id) == std::string(1, byte)) {
      return id;
    }
  }
  throw std::runtime_error("the model has no token for this byte");
}

TEST(Callbacks, WhatWasHeldBackIsShownAtTheEnd) {
  Engine engine = Engine::load(testing::data(kLlama), {});
  const int32_t partial = byte_token(engine, '\xe2');  // the first byte of three
  const std::string text = run(engine, story(engine, 8)).text;
  ASSERT_GT(text.size(), 8u);
  struct Case {
    const char* name;
    bool partial;        // characters, and nothing else, are generated
    int64_t max_tokens;  // 20: more than are waited for
    int64_t end_after;   // tokens, by `end`; 0: by max_tokens
    FinishReason end;    // cancelled or error, if not by max_tokens
    std::vector<std::string> stop;
    std::string text;
    FinishReason finish;
  };
  using enum FinishReason;
  const std::string one = kReplacement;
  const std::vector<std::string> begun{text.substr(text.size() - 4) + "#", "never said"};
  const std::vector<Case> cases{
      {"a partial character", true, 1, 0, length, {}, one, length},
      {"several", true, 3, 0, length, {}, one + one + one, length},
      {"a partial character, cancelled", true, 20, 1, cancelled, {}, one, cancelled},
      {"several, cancelled", true, 20, 3, cancelled, {}, one + one + one, cancelled},
      {"a partial character, an error", true, 20, 1, error, {}, one, error},
      {"the flush completes a stop text", true, 1, 0, length, {one}, "", stop},
      {"the flush completes a longer one", true, 3, 0, length, {one + one + one}, "", stop},
      {"the flush completes it, cancelled", true, 20, 1, cancelled, {one}, "", cancelled},
      {"the flush begins a stop text", true, 2, 0, length, {one + one + "x"}, one + one, length},
      {"a stop text before the flush", true, 20, 0, length, {one}, "", stop},
      {"a stop text has begun", false, 8, 0, length, begun, text, length},
      {"a stop text has begun, cancelled", false, 20, 8, cancelled, begun, text, cancelled},
      {"a stop text has begun, an error", false, 20, 8, error, begun, text, error},
  };
  for (const Case& c : cases) {
    Request request = story(engine, c.max_tokens);
    if (c.partial) {
      request.sampling.logit_bias = {{.token = partial, .bias = 1000.0f}};
    }
    request.stop = c.stop;
    Heard heard;
    const int64_t id = engine.submit(request, [&](const TokenEvent& event) {
      heard.add(event);
      if (c.end == error && std::ssize(heard.tokens) == c.end_after && !event.finish) {
        throw std::runtime_error("no more");
      }
    });
    while (heard.finish.empty() && engine.step()) {
      if (c.end == cancelled && std::ssize(heard.tokens) == c.end_after) {
        engine.cancel(id);
      }
    }
    EXPECT_EQ(heard.text, c.text) << c.name;
    EXPECT_EQ(heard.finish, std::vector<FinishReason>{c.finish}) << c.name;
    drain(engine);
  }
}

// What was reported of a prompt, bit for bit.
struct PromptReport {
  std::vector<int64_t> positions;
  std::vector<uint32_t> logits;
  std::vector<int32_t> log_prob_tokens;
  std::vector<uint32_t> log_probs;

  friend bool operator==(const PromptReport&, const PromptReport&) = default;
};

PromptReport report(Engine& engine, Request request, bool score_prompt) {
  PromptReport result;
  if (score_prompt) {
    request.score_prompt = true;
    request.on_logits = [&](int64_t position, std::span<const float> logits) {
      result.positions.push_back(position);
      for (float logit : logits) {
        result.logits.push_back(std::bit_cast<uint32_t>(logit));
      }
    };
  }
  engine.submit(request, [&](const TokenEvent& event) {
    for (const TokenLogProbs& of_prompt : event.prompt_log_probs) {
      result.log_prob_tokens.push_back(of_prompt.token.token);
      result.log_probs.push_back(std::bit_cast<uint32_t>(of_prompt.token.log_prob));
      for (const TokenLogProb& top : of_prompt.top) {
        result.log_probs.push_back(std::bit_cast<uint32_t>(top.log_prob));
      }
    }
  });
  drain(engine);
  return result;
}

TEST(Callbacks, AnInterruptedPromptIsReportedOnce) {
  // The elder takes a page from the younger while two of three rows of a step are the younger's.
  Request elder;
  elder.prompt.assign(15, 400);
  elder.max_tokens = 100;
  elder.ignore_eos = true;
  Request younger;
  for (int32_t i = 0; i < 100; ++i) {
    younger.prompt.push_back(300 + i);
  }
  younger.max_tokens = 4;
  younger.ignore_eos = true;
  for (int steps_ahead : {0, 1}) {
    for (bool score_prompt : {false, true}) {
      for (bool log_probs : {false, true}) {
        EngineOptions options;
        options.with_tokenizer = false;
        options.steps_ahead = steps_ahead;
        options.max_requests = 2;
        options.step_tokens = 3;
        options.context_size = 128;
        options.kv_tokens = 144;
        Engine engine = load_tiny(options);
        if (log_probs) {
          younger.log_probs = 2;
        } else {
          younger.log_probs.reset();
        }
        younger.prompt_log_probs = log_probs;
        const PromptReport alone = report(engine, younger, score_prompt);
        EXPECT_EQ(engine.stats().recomputed_tokens, 0);
        engine.submit(elder, {});
        const PromptReport interrupted = report(engine, younger, score_prompt);
        EXPECT_GT(engine.stats().recomputed_tokens, 0);
        EXPECT_LT(engine.stats().recomputed_tokens, 100);  // in mid-prompt
        EXPECT_TRUE(interrupted == alone) << steps_ahead << score_prompt << log_probs;
        EXPECT_EQ(alone.log_prob_tokens.size(), log_probs ? 99u : 0u);
        EXPECT_EQ(alone.positions.size(), score_prompt ? 103u : 0u);
        for (size_t i = 0; i < alone.positions.size(); ++i) {
          EXPECT_EQ(alone.positions[i], static_cast<int64_t>(i));
        }
      }
    }
  }
}

TEST(Callbacks, WithoutALimitTheContinuationFillsThePool) {
  EngineOptions options;
  options.with_tokenizer = false;
  options.context_size = 192;
  options.kv_tokens = 64;
  Engine engine = load_tiny(options);
  struct Case {
    size_t prompt;
    int64_t max_tokens;
    size_t generated;
    const char* error;  // a part of it; empty if the request is accepted
  };
  const char refused[] = "does not fit the KV cache of 64 tokens";
  const std::vector<Case> cases{
      {20, -1, 44, ""},    {63, -1, 1, ""},      {20, 44, 44, ""},
      {64, 0, 0, ""},      {20, 45, 0, refused}, {64, -1, 0, refused},
      {64, 1, 0, refused}, {65, 0, 0, refused},  {100, -1, 0, refused},
  };
  std::vector<Request> requests;
  for (const Case& c : cases) {
    Request request;
    request.prompt.assign(c.prompt, 300);
    request.max_tokens = c.max_tokens;
    request.ignore_eos = true;
    requests.push_back(request);
  }
  const std::vector<Completion> done = engine.generate(requests);
  ASSERT_EQ(done.size(), cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    const bool accepted = std::string(cases[i].error).empty();
    EXPECT_EQ(done[i].tokens.size(), cases[i].generated) << i;
    EXPECT_EQ(done[i].finish, accepted ? FinishReason::length : FinishReason::error) << i;
    EXPECT_EQ(done[i].error.empty(), accepted) << done[i].error;
    EXPECT_NE(done[i].error.find(cases[i].error), std::string::npos) << done[i].error;
  }
  drain(engine);
}

}  // namespace
}  // namespace sparsellm
