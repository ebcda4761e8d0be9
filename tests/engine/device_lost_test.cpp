// A device that is lost, as a runner tells of it: the engine says so from then on, and whatever
// holds results keeps those that it has.

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "kernels/base/error.h"
#include "tests/testing/forwarding_runner.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"
#include "tools/run/batch.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

constexpr char kLost[] = "CUDA failed at somewhere.cu:7: an illegal memory access was encountered";

enum class Where : uint8_t { launch, finish };

struct Failure {
  Where where = Where::launch;
  int64_t after = 0;  // calls that go well before
  std::function<void()> fail = [] { throw DeviceLost(kLost); };
  int64_t calls = 0;  // of launch() and finish() together
  int64_t failures = 0;
};

class FailingRunner : public testing::ForwardingRunner {
 public:
  FailingRunner(std::unique_ptr<StepRunner> runner, Failure& failure)
      : ForwardingRunner(std::move(runner)), failure_(failure) {}

  int launch(const RankStep& step, const KvCache& kv) override {
    meet(Where::launch);
    return ForwardingRunner::launch(step, kv);
  }
  std::span<const int32_t> finish(int number) override {
    meet(Where::finish);
    return ForwardingRunner::finish(number);
  }

 private:
  void meet(Where where) {
    ++failure_.calls;
    if (where == failure_.where && failure_.after-- == 0) {
      ++failure_.failures;
      failure_.fail();
    }
  }

  Failure& failure_;
};

EngineOptions failing_options(Failure& failure) {
  EngineOptions options;
  options.threads = 1;
  options.wrap_runner = [&failure](std::unique_ptr<StepRunner> runner) {
    return std::make_unique<FailingRunner>(std::move(runner), failure);
  };
  return options;
}

Engine load_tiny(EngineOptions options) {
  options.with_tokenizer = false;
  return Engine::load(testing::data("tiny/llama3"), options);
}

Request request_of(int64_t max_tokens) {
  return {.prompt = {1, 2, 3}, .max_tokens = max_tokens, .ignore_eos = true};
}

// What a request has heard.
struct Heard {
  int64_t tokens = 0;
  std::vector<FinishReason> finish;
  std::string error;

  OnToken listener() {
    return [this](const TokenEvent& event) {
      tokens += event.token ? 1 : 0;
      if (event.finish) {
        finish.push_back(*event.finish);
        error = event.error;
      }
    };
  }
};

std::string lost_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const DeviceLost& error) {
    return error.what();
  } catch (...) {
    return "another exception";
  }
  return "no exception";
}

TEST(DeviceLost, EveryCallFromThenOnSaysTheSame) {
  for (const Where where : {Where::launch, Where::finish}) {
    for (int steps_ahead : {0, 1}) {
      for (int64_t after = 0; after < 5; ++after) {
        SCOPED_TRACE(fmt::format("{} {} {}", static_cast<int>(where), steps_ahead, after));
        Failure failure{.where = where, .after = after};
        EngineOptions options = failing_options(failure);
        options.steps_ahead = steps_ahead;
        options.max_requests = 2;
        std::vector<Heard> heard(3);
        {
          Engine engine = load_tiny(options);
          std::vector<int64_t> ids;
          ids.reserve(heard.size());
          for (Heard& one : heard) {
            ids.push_back(engine.submit(request_of(20), one.listener()));
          }
          EXPECT_FALSE(engine.failed());
          EXPECT_EQ(lost_by([&] {
                      for (int step = 0; step < 100; ++step) {
                        engine.step();
                      }
                    }),
                    kLost);
          EXPECT_EQ(failure.failures, 1);
          const int64_t calls = failure.calls;
          for (int again = 0; again < 2; ++again) {
            EXPECT_EQ(engine.failed(), kLost);
            EXPECT_EQ(lost_by([&] { engine.step(); }), kLost);
            EXPECT_EQ(lost_by([&] { engine.submit(request_of(1), {}); }), kLost);
            EXPECT_EQ(lost_by([&] { engine.check(request_of(1)); }), kLost);
            EXPECT_EQ(lost_by([&] { engine.generate({request_of(1)}); }), kLost);
            EXPECT_EQ(lost_by([&] { engine.generate({}); }), kLost);
            EXPECT_EQ(lost_by([&] { engine.decode_seconds(); }), kLost);
          }
          EXPECT_EQ(failure.calls, calls);  // the device is left alone
          // Two were at work, the third has not begun.
          for (const Heard& one : {heard[0], heard[1]}) {
            EXPECT_EQ(one.finish, std::vector<FinishReason>{FinishReason::error});
            EXPECT_EQ(one.error, kLost);
          }
          EXPECT_TRUE(heard[2].finish.empty());
          engine.cancel(ids[2]);
          EXPECT_EQ(heard[2].finish, std::vector<FinishReason>{FinishReason::cancelled});
          EXPECT_EQ(heard[2].tokens, 0);
          EXPECT_GT(engine.context_size(), 0);
          EXPECT_EQ(engine.free_pages(), engine.total_pages());
          Engine moved = std::move(engine);
          EXPECT_EQ(moved.failed(), kLost);
        }
        EXPECT_EQ(heard[0].finish.size(), 1u);
      }
    }
  }
}

TEST(DeviceLost, AnyOtherErrorOfAStepEndsItsRequestsAlone) {
  for (const Where where : {Where::launch, Where::finish}) {
    Failure failure{.where = where, .after = 2, .fail = [] { throw Error("a bad step"); }};
    Engine engine = load_tiny(failing_options(failure));
    EXPECT_TRUE(testing::throws_error([&] { engine.generate({request_of(9)}); }, "a bad step"));
    EXPECT_FALSE(engine.failed());
    const Completion next = engine.generate({request_of(9)}).front();
    EXPECT_EQ(next.error, "");
    EXPECT_EQ(next.tokens.size(), 9u);
  }
}

// The engine keeps nothing of requests that ended with a step that failed.
TEST(DeviceLost, RequestsOfAFailedStepAreDestroyed) {
  for (int steps_ahead : {0, 1}) {
    for (int64_t after = 0; after < 4; ++after) {
      Failure failure{.after = after, .fail = [] { throw std::runtime_error("a bad step"); }};
      EngineOptions options = failing_options(failure);
      options.steps_ahead = steps_ahead;
      Engine engine = load_tiny(options);
      std::vector<FinishReason> finish;
      auto held = std::make_shared<int>();
      const std::weak_ptr<int> observer = held;
      engine.submit(request_of(9), [&finish, held = std::move(held)](const TokenEvent& event) {
        if (event.finish) {
          finish.push_back(*event.finish);
        }
      });
      EXPECT_THROW(
          {
            while (engine.step()) {
            }
          },
          std::runtime_error);
      while (engine.step()) {
      }
      EXPECT_EQ(finish, std::vector{FinishReason::error});
      EXPECT_TRUE(observer.expired()) << steps_ahead << ' ' << after;
    }
  }
}

TEST(DeviceLost, GenerateDoesNotTakeItForTheFaultOfARequest) {
  for (const Where where : {Where::launch, Where::finish}) {
    Failure failure{.where = where, .after = 3};
    Engine engine = load_tiny(failing_options(failure));
    EXPECT_EQ(lost_by([&] { engine.generate({request_of(9), request_of(3)}); }), kLost);
    EXPECT_EQ(engine.failed(), kLost);
  }
}

TEST(DeviceLost, ListenersCannotSubmitAfterIt) {
  Failure failure{.where = Where::finish, .after = 1};
  Engine engine = load_tiny(failing_options(failure));
  std::string refused;
  engine.submit(request_of(9), [&](const TokenEvent& event) {
    if (event.finish) {
      refused = lost_by([&] { engine.submit(request_of(1), {}); });
    }
  });
  EXPECT_EQ(lost_by([&] {
              while (engine.step()) {
              }
            }),
            kLost);
  EXPECT_EQ(refused, kLost);
}

std::string text_of(const fs::path& file) {
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

// What was written before is kept, line by line, nothing else is, and another run goes on.
TEST(DeviceLost, ABatchCanBeResumed) {
  const testing::TempDir folder;
  std::string lines;
  for (int i = 0; i < 12; ++i) {
    lines += fmt::format("{{\"prompt\": \"The king\", \"seed\": {}, \"max_tokens\": {}}}\n", i,
                         2 + 3 * (i % 4));
  }
  const BatchOptions whole{.prompts = folder.write("in.jsonl", lines),
                           .output = folder.path() / "whole.jsonl"};
  const auto load = [](EngineOptions options) {
    options.max_requests = 2;
    return Engine::load(testing::data("models/fable-llama-relu-8m"), options);
  };
  const auto run = [](Engine& engine, const BatchOptions& options) {
    Batch batch(options);
    batch.start({}, {}, {});
    batch.run(engine, {}, 2, [](const BatchProgress&) {});
  };
  Engine good = load({});
  run(good, whole);
  const std::string expected = text_of(whole.output);

  BatchOptions broken = whole;
  broken.output = folder.path() / "broken.jsonl";
  const fs::path partial = Batch(broken).partial();
  for (const Where where : {Where::launch, Where::finish}) {
    Failure failure{.where = where, .after = 9};
    Engine lost = load(failing_options(failure));
    broken.resume = false;
    broken.force = true;
    EXPECT_EQ(lost_by([&] { run(lost, broken); }), kLost);
    // A run that meets it at its first prompt spoils nothing either.
    broken.resume = true;
    broken.force = false;
    const std::string kept = text_of(partial);
    EXPECT_EQ(lost_by([&] { run(lost, broken); }), kLost);
    EXPECT_EQ(text_of(partial), kept);
    EXPECT_FALSE(kept.empty());
    EXPECT_LT(kept.size(), expected.size());
    EXPECT_TRUE(expected.starts_with(kept));
    EXPECT_EQ(kept.back(), '\n');
    run(good, broken);
    EXPECT_EQ(text_of(broken.output), expected);
    fs::remove(broken.output);
  }
}

}  // namespace
}  // namespace sparsellm
