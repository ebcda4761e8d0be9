// How many steps the engine enqueues before it waits for one.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tests/testing/forwarding_runner.h"
#include "tests/testing/paths.h"

namespace sparsellm {
namespace {

// Writes down which calls it gets: 'l' for launch(), 'f' for finish().
class RecordingRunner : public testing::ForwardingRunner {
 public:
  RecordingRunner(std::unique_ptr<StepRunner> runner, std::string& calls)
      : ForwardingRunner(std::move(runner)), calls_(calls) {}

  int launch(const RankStep& step, const KvCache& kv) override {
    calls_ += 'l';
    return ForwardingRunner::launch(step, kv);
  }
  std::span<const int32_t> finish(int number) override {
    calls_ += 'f';
    return ForwardingRunner::finish(number);
  }

 private:
  std::string& calls_;
};

struct Outcome {
  std::string calls;
  std::vector<int32_t> tokens;
};

Outcome run(int steps_ahead, int64_t max_tokens) {
  Outcome outcome;
  EngineOptions options;
  options.threads = 1;
  options.with_tokenizer = false;
  options.steps_ahead = steps_ahead;
  options.wrap_runner = [&](std::unique_ptr<StepRunner> runner) {
    return std::make_unique<RecordingRunner>(std::move(runner), outcome.calls);
  };
  Engine engine = Engine::load(testing::data("tiny/llama3"), options);
  outcome.tokens = engine
                       .generate({{.prompt = {1, 2, 3},
                                   .sampling = {.temperature = 0.0f},
                                   .max_tokens = max_tokens,
                                   .ignore_eos = true}})
                       .front()
                       .tokens;
  return outcome;
}

TEST(StepsAhead, AreEnqueuedBeforeTheStepBeforeIsWaitedFor) {
  const Outcome one = run(1, 4);
  EXPECT_EQ(one.calls, "llflflff");
  const Outcome none = run(0, 4);
  EXPECT_EQ(none.calls, "lflflflf");
  EXPECT_EQ(one.tokens.size(), 4u);
  EXPECT_EQ(one.tokens, none.tokens);
  EXPECT_EQ(run(1, 1).calls, "lf");
  EXPECT_EQ(run(-1, 2).calls, "lflf");  // the CPU computes a step when it is launched
}

}  // namespace
}  // namespace sparsellm
