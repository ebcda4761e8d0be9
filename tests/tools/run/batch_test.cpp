// Batches inside this process, with an engine whose steps can be made to go wrong.

#include "tools/run/batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/step_runner.h"
#include "kernels/base/error.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

// In its second step the choices at these places are errors.
class FailingChoices : public StepRunner {
 public:
  FailingChoices(std::unique_ptr<StepRunner> runner, std::vector<size_t> failing)
      : runner_(std::move(runner)), failing_(std::move(failing)) {}

  void launch(Step& step, const KvCache& kv) override { runner_->launch(step, kv); }
  void finish(Step& step) override {
    runner_->finish(step);
    if (++steps_ == 2) {
      for (size_t i : failing_) {
        step.choices.at(i).error = "no token for you";
      }
    }
  }
  void warm_up(const KvCache& kv) override { runner_->warm_up(kv); }
  ExecContext& exec() override { return runner_->exec(); }
  int64_t memory_bytes() const override { return runner_->memory_bytes(); }
  std::vector<std::pair<std::string, double>> decode_seconds() const override { return {}; }
  int64_t waits() const override { return runner_->waits(); }

 private:
  std::unique_ptr<StepRunner> runner_;
  std::vector<size_t> failing_;
  int64_t steps_ = 0;
};

std::vector<nlohmann::json> results_of(const std::vector<size_t>& failing) {
  const testing::TempDir folder;
  std::string lines;
  for (int i = 0; i < 4; ++i) {
    lines += "{\"prompt_ids\": [1, 5, 9], \"max_tokens\": 2, \"ignore_eos\": true}\n";
  }
  Batch batch({.prompts = folder.write("in.jsonl", lines), .output = folder.path() / "out.jsonl"});
  EngineOptions options;
  options.threads = 1;
  options.steps_ahead = 0;
  options.wrap_runner = [&](std::unique_ptr<StepRunner> runner) {
    return std::make_unique<FailingChoices>(std::move(runner), failing);
  };
  Engine engine = Engine::load(testing::data("tiny/llama3"), options);
  batch.start({}, {}, {});
  int64_t reports = 0;
  batch.run(engine, {}, 4,
            [&](const BatchProgress&) { require(++reports < 20, "the batch has no end"); });
  EXPECT_EQ(batch.progress().done, 4);
  EXPECT_EQ(batch.progress().failed, std::ssize(failing));
  std::vector<nlohmann::json> results;
  std::ifstream file(folder.path() / "out.jsonl");
  for (std::string line; std::getline(file, line);) {
    results.push_back(nlohmann::json::parse(line));
  }
  return results;
}

// All four end in one step, in the order of the lines.
TEST(Batch, ResultsBesideAFailedOneAreKept) {
  for (const std::vector<size_t>& failing :
       std::vector<std::vector<size_t>>{{}, {0}, {1, 2}, {3}, {0, 1, 2, 3}}) {
    const std::vector<nlohmann::json> results = results_of(failing);
    ASSERT_EQ(results.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      SCOPED_TRACE(results[i].dump());
      const bool failed = std::ranges::find(failing, i) != failing.end();
      EXPECT_EQ(results[i].at("id"), i + 1);
      EXPECT_EQ(results[i].contains("error"), failed);
      if (failed) {
        EXPECT_EQ(results[i].at("error"), fmt::format("line {}: no token for you", i + 1));
      }
    }
  }
}

}  // namespace
}  // namespace sparsellm
