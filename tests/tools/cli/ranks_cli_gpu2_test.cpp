// The programs with a rank on each of two GPUs, as threads and as processes.

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/device.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/run/batch_folder.h"
#include "tests/tools/run_ranks.h"

namespace sparsellm {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;
using testing::Outcome;
using testing::ranks_of;
using testing::run_program;
using testing::run_ranks;
using Words = std::vector<std::string>;

std::string llama() { return testing::data("models/fable-llama-relu-8m").string(); }

Words joined(Words first, const Words& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

class RanksCliGpu2 : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() < 2) {
      GTEST_SKIP() << "2 ranks need 2 GPUs, there is " << cuda_device_count();
    }
  }

  Words at_meeting(const Words& args) const {
    return joined(args, {"--rendezvous", (folder_.path() / "meet").string()});
  }

  testing::TempDir folder_;
};

TEST_F(RanksCliGpu2, ThreadsAndProcessesSayTheSame) {
  for (const char* format : {"stored", "tca_bme"}) {
    const Words args{
        "-m", llama(),  "--device", "cuda:0,cuda:1",   "-p",   "The king had", "-n",
        "64", "--temp", "0",        "--weight-format", format, "--no-tune",    "--quiet"};
    const Outcome threads = run_program("sparsellm-run", joined(args, {"--tensor-parallel", "2"}));
    EXPECT_EQ(threads.exit_code, 0) << threads.err;
    EXPECT_FALSE(threads.out.empty());
    for (const Outcome& outcome : run_ranks("sparsellm-run", ranks_of(2, at_meeting(args)))) {
      EXPECT_EQ(outcome.exit_code, 0);
      EXPECT_EQ(outcome.err, "");
      EXPECT_TRUE(outcome.out.empty() || outcome.out == threads.out) << outcome.out;
    }
  }
}

TEST_F(RanksCliGpu2, TwoAreOne) {
  const std::string text = testing::data("text/peter_pan.txt").string();
  const Outcome outcome = run_program(
      "sparsellm-eval", {"compare", llama(), "--text", text, "--context", "256", "--device",
                         "cuda:0", "--tensor-parallel-b", "2", "--quiet", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto result = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(result.at("device_b"), "cuda:0, cuda:1");
  EXPECT_LT(result.at("kl_mean"), 1e-4);
  EXPECT_NEAR(result.at("perplexity_ratio"), 1.0, 1e-3);
}

TEST_F(RanksCliGpu2, ThroughputIsOfEachGpu) {
  const auto row = [](const char* ranks) {
    const Outcome outcome = run_program(
        "sparsellm-bench",
        {"throughput", "--config", (testing::source_dir() / "configs/opt-1.3b.json").string(),
         "--device", "cuda:0", "--tensor-parallel", ranks, "--batch", "4", "--output", "16",
         "--repeat", "1", "--no-tune", "--no-layers", "--quiet", "--format", "jsonl"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const size_t last = outcome.out.rfind('\n', outcome.out.size() - 2);
    return nlohmann::json::parse(outcome.out.substr(last + 1));
  };
  const auto one = row("1");
  const auto two = row("2");
  EXPECT_EQ(two.at("ranks"), 2);
  EXPECT_LT(two.at("weights_gib").get<double>(), 0.6 * one.at("weights_gib").get<double>());
  EXPECT_EQ(two.at("kv_used_gib").get<double>() * 2, one.at("kv_used_gib"));
  EXPECT_LT(two.at("bandwidth_percent"), 100.0);
}

TEST_F(RanksCliGpu2, ARankThatIsKilledEndsAll) {
  const testing::BatchFolder batch(testing::many_prompts(2000));
  const Words args{"-m",        llama(),
                   "--device",  "cuda",
                   "--quiet",   "--no-tune",
                   "--prompts", batch.prompts().string(),
                   "--output",  batch.output().string()};
  std::chrono::steady_clock::time_point killed;
  const auto all =
      run_ranks("sparsellm-run", ranks_of(2, at_meeting(args)),
                [&](const std::vector<pid_t>& ranks, const fs::path&) {
                  const auto deadline = std::chrono::steady_clock::now() + 25s;
                  while (!fs::exists(batch.partial()) || fs::file_size(batch.partial()) == 0) {
                    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
                    std::this_thread::sleep_for(5ms);
                  }
                  killed = std::chrono::steady_clock::now();
                  ::kill(ranks[1], SIGKILL);
                });
  EXPECT_LT(std::chrono::steady_clock::now() - killed, 5s);
  EXPECT_EQ(all[0].exit_code, 1);
  EXPECT_TRUE(all[0].err.starts_with("sparsellm-run: rank 1 (cuda:1): connection closed"))
      << all[0].err;
}

}  // namespace
}  // namespace sparsellm
