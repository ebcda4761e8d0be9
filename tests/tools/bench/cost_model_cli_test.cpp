// sparsellm-bench cost-model as a user meets it.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/run_program.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Outcome;
using testing::TempDir;

constexpr const char* kReport =
    R"({"table":"environment","gpu":"GPU 1"}
{"table":"plans","matrix":"m","dtype":"f32","n":1,"order":"rows","plan":"plan tokens=1 group=1 )"
    R"(token-warps=1 block=several,whole warp=several,whole thread=one,whole thread-nonzeros=0 )"
    R"(step=1 a-vector=1 x-vector=1 x-order=transposed reductions=total,none,none threads=128",)"
    R"("predicted_us":7,"time_us":5}
)";

class BenchCostModel : public ::testing::Test {
 protected:
  Outcome run(std::vector<std::string> args) {
    args.insert(args.begin(), "cost-model");
    return testing::run_program("sparsellm-bench", args);
  }
  std::string path(const char* name) const { return (folder_.path() / name).string(); }

  TempDir folder_;
  std::string list_ = folder_.write("list.json", R"({"matrices": [
      {"name": "m", "class": "uniform", "rows": 64, "columns": 64, "nonzeros": 640, "seed": 3}]})");
  std::string report_ = folder_.write("report.jsonl", kReport);
};

TEST_F(BenchCostModel, AReportIsFittedWithoutAGpu) {
  const Outcome outcome = run({"--matrices", list_, "--samples", report_, "--write",
                               path("model.json"), "--output", "json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const json tables = json::parse(outcome.out).at("tables");
  ASSERT_EQ(tables.size(), 1u);
  EXPECT_EQ(tables[0].at("name"), "fit");
  EXPECT_EQ(tables[0].at("rows").size(), 8u);
  EXPECT_EQ(tables[0].at("rows")[0].at("samples"), 1);
  EXPECT_EQ(tables[0].at("rows")[1].at("samples"), 0);
  EXPECT_EQ(json::parse(testing::read_file(path("model.json"))).at("gpu"), "GPU 1");
}

TEST_F(BenchCostModel, WrongOptionsAreNamedInOneLine) {
  struct Case {
    int exit_code;
    std::string message;
    std::vector<std::string> args;
  };
  const std::string broken = folder_.write("broken.jsonl", std::string(kReport) + "{\n");
  const std::string no_gpu = folder_.write("no_gpu.jsonl", R"({"table":"plans","plan":"rows"})");
  const std::vector<Case> cases{
      {2, "--matrices", {}},
      {2, "--matrices", {"--matrices", ""}},
      {1, "/no/such/list.json", {"--matrices", "/no/such/list.json"}},
      {2, "--plans", {"--matrices", list_, "--exhaustive", "--plans", "9"}},
      {2, "--random-plans", {"--matrices", list_, "--exhaustive", "--random-plans", "9"}},
      {2, "--plans", {"--matrices", list_, "--plans", "-1"}},
      {2, "--tokens", {"--matrices", list_, "--tokens", "0"}},
      {2, "--order", {"--matrices", list_, "--order", "diagonal"}},
      {2, "--dtype", {"--matrices", list_, "--dtype", "f64"}},
      {2, "--output", {"--matrices", list_, "--output", "xml"}},
      {2, "--cost-model", {"--matrices", list_, "--cost-model", ""}},
      {2, "--write", {"--matrices", list_, "--samples", report_}},
      {1, "unknown device 'tpu'", {"--matrices", list_, "--device", "tpu"}},
      {1,
       "plans are measured on CUDA devices, not on cpu",
       {"--matrices", list_, "--device", "cpu"}},
      {1, "cuda:99", {"--matrices", list_, "--device", "cuda:99"}},
      {1,
       "none/model.json",
       {"--matrices", list_, "--samples", report_, "--write", path("none/model.json")}},
      {1,
       "none.jsonl",
       {"--matrices", list_, "--samples", path("none.jsonl"), "--write", path("model.json")}},
      {1,
       "broken.jsonl(3)",
       {"--matrices", list_, "--samples", broken, "--write", path("model.json")}},
      {1,
       "no_gpu.jsonl has no times of plans on a GPU",
       {"--matrices", list_, "--samples", no_gpu, "--write", path("model.json")}},
  };
  for (const Case& c : cases) {
    const Outcome outcome = run(c.args);
    EXPECT_EQ(outcome.exit_code, c.exit_code) << c.message << ": " << outcome.err;
    EXPECT_NE(outcome.err.find(c.message), std::string::npos) << c.message << ": " << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("sparsellm-bench: ")) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "") << c.message;
  }
  EXPECT_FALSE(fs::exists(path("model.json")));
}

}  // namespace
}  // namespace sparsellm
