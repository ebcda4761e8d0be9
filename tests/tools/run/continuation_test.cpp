// A prompt continued inside this process, whose engine outlives what goes wrong.

#include "tools/run/continuation.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdio_ext.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/sampler.h"
#include "tests/testing/paths.h"
#include "tests/testing/throws_error.h"
#include "tests/tools/run/failing_choices.h"

namespace sparsellm {
namespace {

using testing::throws_error;

Engine load(
    const std::function<std::unique_ptr<StepRunner>(std::unique_ptr<StepRunner>)>& wrap = {}) {
  EngineOptions options;
  options.threads = 1;
  options.steps_ahead = 0;
  options.wrap_runner = wrap;
  return Engine::load(testing::data("tiny/llama3"), options);
}

Prompt some_prompt() {
  Prompt prompt{.text = "king", .request = {}, .echo = true};
  prompt.request.max_tokens = 2;
  prompt.request.ignore_eos = true;
  prompt.request.seed = 1;
  return prompt;
}

// In its scope nothing can be written to stdout.
class FullStdout {
 public:
  FullStdout() : before_(::dup(STDOUT_FILENO)) {
    std::fflush(stdout);
    const int full = ::open("/dev/full", O_WRONLY);
    ::dup2(full, STDOUT_FILENO);
    ::close(full);
  }
  ~FullStdout() {
    ::__fpurge(stdout);
    std::clearerr(stdout);
    ::dup2(before_, STDOUT_FILENO);
    ::close(before_);
  }
  FullStdout(const FullStdout&) = delete;
  FullStdout& operator=(const FullStdout&) = delete;

 private:
  int before_;
};

// Of the text before the first step; of the result when the request has ended.
TEST(Continuation, AStdoutThatCannotBeWrittenLeavesNoRequest) {
  for (const bool json : {false, true}) {
    Engine engine = load();
    {
      const FullStdout full;
      EXPECT_TRUE(throws_error([&] { continue_prompt(engine, some_prompt(), {.json = json}); },
                               "cannot write to standard output"));
    }
    EXPECT_FALSE(engine.step());
    EXPECT_EQ(engine.free_pages(), engine.total_pages());
  }
}

TEST(Continuation, ASampleThatFailsIsAnError) {
  for (const bool json : {false, true}) {
    Engine engine = load([](std::unique_ptr<StepRunner> runner) {
      return std::make_unique<testing::FailingChoices>(std::move(runner), std::vector<int64_t>{1});
    });
    Prompt prompt = some_prompt();
    prompt.request.samples = 2;
    ::testing::internal::CaptureStdout();
    EXPECT_TRUE(
        throws_error([&] { continue_prompt(engine, prompt, {.json = json}); }, kLogitsNotFinite));
    const std::string text = ::testing::internal::GetCapturedStdout();
    EXPECT_EQ(text.empty(), json) << text;
    EXPECT_FALSE(engine.step());
  }
}

TEST(Continuation, AsTextAndAsJson) {
  Engine engine = load();
  const auto printed = [&](bool json) {
    ::testing::internal::CaptureStdout();
    continue_prompt(engine, some_prompt(), {.json = json});
    return ::testing::internal::GetCapturedStdout();
  };
  const std::string text = printed(/*json=*/false);
  const std::string line = printed(/*json=*/true);
  EXPECT_TRUE(text.starts_with("king"));
  EXPECT_TRUE(line.ends_with("}\n"));
  const nlohmann::json result = nlohmann::json::parse(line);
  EXPECT_EQ(result.at("prompt"), "king");
  EXPECT_EQ(result.at("token_ids").size(), 2u);
  EXPECT_EQ("king" + result.at("text").get<std::string>() + "\n", text);
}

}  // namespace
}  // namespace sparsellm
