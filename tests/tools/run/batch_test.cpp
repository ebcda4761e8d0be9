// Batches inside this process, with an engine whose steps can be made to go wrong.

#include "tools/run/batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/sampler.h"
#include "kernels/base/crc32c.h"
#include "kernels/base/error.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"
#include "tests/tools/run/failing_choices.h"
#include "tools/run/run_mark.h"

namespace sparsellm {
namespace {

using testing::throws_error;

std::vector<nlohmann::json> results_of(const std::vector<int64_t>& failing) {
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
    return std::make_unique<testing::FailingChoices>(std::move(runner), failing);
  };
  Engine engine = Engine::load(testing::data("tiny/llama3"), options);
  batch.start({}, {}, {});
  int64_t reports = 0;
  batch.run(engine, {}, 4,
            [&](const BatchProgress&) { require(++reports < 20, "the batch has no end"); });
  const BatchProgress& progress = batch.progress();
  EXPECT_EQ(progress.lines, 4);
  EXPECT_EQ(progress.done, 4);
  EXPECT_EQ(progress.before, 0);
  EXPECT_EQ(progress.failed, std::ssize(failing));
  EXPECT_EQ(progress.tokens, 8 - std::ssize(failing));
  EXPECT_GT(progress.seconds, 0.0);
  EXPECT_FALSE(std::filesystem::exists(batch.partial()));
  std::vector<nlohmann::json> results;
  std::ifstream file(folder.path() / "out.jsonl");
  for (std::string line; std::getline(file, line);) {
    results.push_back(nlohmann::json::parse(line));
  }
  return results;
}

// All four end in one step, in the order of the lines.
TEST(Batch, ResultsBesideAFailedOneAreKept) {
  for (const std::vector<int64_t>& failing :
       std::vector<std::vector<int64_t>>{{}, {0}, {1, 2}, {3}, {0, 1, 2, 3}}) {
    const std::vector<nlohmann::json> results = results_of(failing);
    ASSERT_EQ(results.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      SCOPED_TRACE(results[i].dump());
      const bool failed = std::ranges::find(failing, static_cast<int64_t>(i)) != failing.end();
      EXPECT_EQ(results[i].at("id"), i + 1);
      EXPECT_EQ(results[i].contains("error"), failed);
      if (failed) {
        EXPECT_EQ(results[i].at("error"), fmt::format("line {}: {}", i + 1, kLogitsNotFinite));
      }
    }
  }
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A folder with prompts, and the batch of them.
class BatchFolder {
 public:
  explicit BatchFolder(std::string_view prompts) { write("in.jsonl", prompts); }

  void write(const char* name, std::string_view text) const { folder_.write(name, text); }
  BatchOptions options(bool force, bool resume) const {
    return {.prompts = folder_.path() / "in.jsonl",
            .output = output(),
            .force = force,
            .resume = resume};
  }
  std::filesystem::path output() const { return folder_.path() / "out.jsonl"; }
  std::filesystem::path partial() const { return folder_.path() / "out.jsonl.partial"; }
  std::optional<RunMark> mark() const {
    return RunMarkFile(folder_.path() / "out.jsonl.partial.json").read();
  }

 private:
  testing::TempDir folder_;
};

// Its mark says which prompts it was for, long before it is known which model.
TEST(Batch, AForcedRunThatDiesAtOnceIsNotThatOfOtherPrompts) {
  for (const char* older : {"out.jsonl", "out.jsonl.partial"}) {
    const BatchFolder folder("{\"prompt\": \"x\"}\n");
    folder.write(older, "older\n");
    { const Batch dies(folder.options(/*force=*/true, /*resume=*/false)); }
    ASSERT_TRUE(folder.mark());
    EXPECT_EQ(folder.mark()->partial, RunMark::Partial::older);
    EXPECT_TRUE(folder.mark()->replaces);

    folder.write("in.jsonl", "{\"prompt\": \"y\"}\n");
    {
      Batch other(folder.options(/*force=*/false, /*resume=*/true));
      EXPECT_TRUE(throws_error([&] { other.start({}, {}, {}); }, "the prompts have changed"));
    }
    folder.write("in.jsonl", "{\"prompt\": \"x\"}\n");
    Batch same(folder.options(/*force=*/false, /*resume=*/true));
    same.start({{"--temp", "0.5"}}, {}, {});
    EXPECT_FALSE(same.has_results());
    EXPECT_TRUE(folder.mark()->replaces);
    EXPECT_EQ(folder.mark()->run.at("--temp"), "0.5");
  }
}

TEST(Batch, AForcedRunThatReplacesNothingLeavesNothing) {
  const BatchFolder folder("{\"prompt\": \"x\"}\n");
  { const Batch dies(folder.options(/*force=*/true, /*resume=*/false)); }
  EXPECT_FALSE(folder.mark());
  EXPECT_FALSE(std::filesystem::exists(folder.partial()));
}

// Also of lines that are no requests, and while a request has more than one sample.
TEST(Batch, ARunThatIsStoppedLeavesTheEngineEmptyAndItsLinesMarked) {
  const std::string prompts =
      "{\"prompt_ids\": [1, 5], \"max_tokens\": 1, \"seed\": 1}\n"
      "{\"prompt_ids\": [1, 5], \"unknown\": 1}\n"
      "{\"prompt_ids\": [1, 5, 9], \"max_tokens\": 20, \"n\": 2, \"seed\": 2}\n"
      "{\"prompt_ids\": [1], \"unknown\": 1}\n";
  EngineOptions options;
  options.threads = 1;
  options.steps_ahead = 0;
  Engine engine = Engine::load(testing::data("tiny/llama3"), options);
  const auto run = [&](const BatchFolder& folder, bool resume, int64_t most_lines) {
    Batch batch(folder.options(/*force=*/false, resume));
    batch.start({}, {}, {});
    const int64_t before = batch.progress().before;
    try {
      batch.run(engine, {}, 4, [&](const BatchProgress& progress) {
        require(progress.done < most_lines, "enough");
      });
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "enough");
    }
    // While what the listeners refer to is still there.
    EXPECT_EQ(engine.free_pages(), engine.total_pages());
    EXPECT_FALSE(engine.step());
    return before;
  };
  const BatchFolder undisturbed(prompts);
  EXPECT_EQ(run(undisturbed, /*resume=*/false, 5), 0);
  const BatchFolder folder(prompts);
  EXPECT_EQ(run(folder, /*resume=*/false, 2), 0);
  const std::string lines = text_of(folder.partial());
  EXPECT_EQ(std::ranges::count(lines, '\n'), 2);
  ASSERT_TRUE(folder.mark());
  EXPECT_EQ(folder.mark()->partial, RunMark::Partial::own);
  EXPECT_EQ(folder.mark()->bytes, std::ssize(lines));
  EXPECT_EQ(folder.mark()->checksum, crc32c(std::as_bytes(std::span(lines))));
  EXPECT_EQ(run(folder, /*resume=*/true, 5), 2);
  EXPECT_EQ(text_of(folder.output()), text_of(undisturbed.output()));
  EXPECT_FALSE(folder.mark());
}

}  // namespace
}  // namespace sparsellm
