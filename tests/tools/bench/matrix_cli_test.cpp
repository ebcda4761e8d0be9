// sparsellm-bench kernel on sparse matrices as a user meets it.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/run_program.h"

namespace sparsellm {
namespace {

using nlohmann::json;
using testing::Outcome;
using testing::TempDir;

constexpr const char* kLayout =
    "positions=u16 shared-rows=1 panel=4096 window=256 sorted=yes interleave=1 vector=1";

Outcome bench_kernel(std::vector<std::string> args) {
  args.insert(args.begin(), {"kernel", "--device", "cpu", "--repeat", "1", "--copies-mib", "1"});
  return testing::run_program("sparsellm-bench", args);
}

TEST(BenchMatrices, AllSourcesInOneRun) {
  const TempDir folder;
  const std::string file = folder.write("tiny.mtx",
                                        "%%MatrixMarket matrix coordinate real general\n"
                                        "3 4 2\n1 1 2.5\n3 4 -1\n");
  const std::string list = folder.write("list.json", R"({"matrices": [
      {"name": "listed", "class": "blocks", "rows": 64, "columns": 64, "nonzeros": 640,
       "seed": 3},
      {"name": "other", "class": "blocks", "rows": 64, "columns": 64, "nonzeros": 640,
       "seed": 4}]})");
  const Outcome outcome = bench_kernel(
      {"--matrix",          file,     "--matrices",  list,         "--only",   "list*",   "--class",
       "uniform,power-law", "--size", "50x40,60x60", "--nonzeros", "200",      "--dtype", "f32",
       "--tokens",          "1,8",    "--order",     "both",       "--format", "json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json report = json::parse(outcome.out);
  EXPECT_EQ(report.at("environment").at("dtype"), "f32");
  const json rows = report.at("tables").at(0).at("rows");
  ASSERT_EQ(rows.size(), 6u * 4u);
  std::vector<std::string> names;
  for (const json& row : rows) {
    EXPECT_EQ(row.at("verified"), "yes") << row;
    if (names.empty() || names.back() != row.at("matrix")) {
      names.push_back(row.at("matrix"));
    }
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"tiny", "uniform 50x40 200", "uniform 60x60 200",
                                      "power-law 50x40 200", "power-law 60x60 200", "listed"}));
}

TEST(BenchMatrices, Defaults) {
  const Outcome outcome = bench_kernel(
      {"--class", "banded", "--size", "64x64", "--nonzeros", "300", "--format", "json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json report = json::parse(outcome.out);
  EXPECT_EQ(report.at("environment").at("dtype"), "f32");
  const json rows = report.at("tables").at(0).at("rows");
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].at("n"), 8);
  EXPECT_EQ(rows[1].at("n"), 32);
  EXPECT_EQ(rows[2].at("n"), 64);
  EXPECT_EQ(rows[0].at("order"), "rows");
}

TEST(BenchMatrices, InALayout) {
  for (const std::vector<std::string>& of :
       {std::vector<std::string>{"--class", "banded", "--size", "64x64", "--nonzeros", "300"},
        {"--shape", "64x64", "--sparsity", "0.5", "--formats", "general_sparse"}}) {
    std::vector<std::string> args = of;
    args.insert(args.end(), {"--tokens", "2", "--layout", kLayout, "--format", "json"});
    const Outcome outcome = bench_kernel(args);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const json rows = json::parse(outcome.out).at("tables").at(0).at("rows");
    EXPECT_LE(rows.back().at("worst_error"), 1.0) << rows.back();
    EXPECT_EQ(rows.back().at("note"), "") << rows.back();
  }
}

TEST(BenchMatrices, WrongOptionsAreNamedInOneLine) {
  const TempDir folder;
  const std::string list = folder.write("list.json", R"({"matrices": [{"name": 3}]})");
  const std::string spmm = (testing::source_dir() / "configs/matrices/spmm.json").string();
  const std::vector<std::string> banded{"--class", "banded",     "--size",
                                        "64x64",   "--nonzeros", "300"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = banded;
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  struct Case {
    int exit_code;
    std::string message;
    std::vector<std::string> args;
  };
  const std::vector<Case> cases{
      {2, "--matrix, --class or --matrices", {}},
      {2, "--dtype f32 is for", {"--shape", "64x64", "--dtype", "f32"}},
      {2, "--order is for", {"--shape", "64x64", "--order", "rows"}},
      {2, "--order", with({"--order", "diagonal"})},
      {2, "--search is for", {"--shape", "64x64", "--search", "2"}},
      {2, "--kernel-cache requires --search", with({"--kernel-cache", "kernels"})},
      {2, "--kernel-cache", with({"--search", "2", "--kernel-cache", ""})},
      {2, "--size", {"--class", "banded", "--nonzeros", "300"}},
      {2, "--nonzeros", {"--class", "banded", "--size", "64x64"}},
      {2, "--class", {"--size", "64x64", "--nonzeros", "300"}},
      {2, "--class dense", {"--class", "dense", "--size", "64x64", "--nonzeros", "300"}},
      {2, "--size \"64\"", {"--class", "banded", "--size", "64", "--nonzeros", "300"}},
      {2, "--nonzeros", {"--class", "banded", "--size", "64x64", "--nonzeros", "0"}},
      {2, "5000 nonzeros", {"--class", "banded", "--size", "64x64", "--nonzeros", "5000"}},
      {2, "square", {"--class", "stencil", "--size", "64x65", "--nonzeros", "300"}},
      {2, "--shape", with({"--shape", "64x64"})},
      {2, "--config", with({"--config", "x.json"})},
      {2, "--sparsity", with({"--sparsity", "0.5"})},
      {2, "--pattern", with({"--pattern", "rows:1"})},
      {2, "--formats", with({"--formats", "tca_bme"})},
      {2, "--ablation", with({"--ablation"})},
      {2, "--profile", with({"--profile"})},
      {2, "--tokens", with({"--tokens", "0"})},
      {2, "--dtype", with({"--dtype", "f64"})},
      {2, "--layout: layout: expected 'positions=', found 'fast'", with({"--layout", "fast"})},
      {2, "--layout: layout: expected 'positions=', found ''", with({"--layout", ""})},
      {2, "--layout: layout: nothing should follow",
       with({"--layout", std::string(kLayout) + " and=more"})},
      {2,
       "--layout is for --formats general_sparse",
       {"--shape", "64x64", "--formats", "tca_bme", "--layout", kLayout}},
      {2, "--layout", {"--shape", "64x64", "--ablation", "--layout", kLayout}},
      {2,
       "--records is for --formats tca_bme",
       {"--shape", "64x64", "--formats", "tiled_csl", "--records", "size"}},
      {2, "--records", {"--shape", "64x64", "--ablation", "--records", "size"}},
      {2, "--records", with({"--records", "size"})},
      {2,
       "--values is for --formats tca_bme and the dense format of these values",
       {"--shape", "64x64", "--formats", "tiled_csl", "--values", "i8"}},
      {2, "--values", with({"--values", "i8"})},
      {1, "two matrices have the name", with({"--size", "64x64,64x64"})},
      {1, "/no/such/list.json", {"--matrices", "/no/such/list.json"}},
      {1, "matrices[0]", {"--matrices", list}},
      {1, "no matrix is called 'a-*' (--only)", {"--matrices", spmm, "--only", "a-*"}},
      {2, "--only", {"--matrices", list, "--only", ""}},
      {2, "--only requires --matrices", with({"--only", "banded-*"})},
  };
  for (const Case& c : cases) {
    const Outcome outcome = bench_kernel(c.args);
    EXPECT_EQ(outcome.exit_code, c.exit_code) << c.message << ": " << outcome.err;
    EXPECT_NE(outcome.err.find(c.message), std::string::npos) << c.message << ": " << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("sparsellm-bench: ")) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "") << c.message;
  }
}

// As of any other file that cannot be measured, the row says why.
TEST(BenchMatrices, AFileThatIsNotThereIsARow) {
  const Outcome outcome = bench_kernel({"--matrix", "/no/such/a.mtx", "--format", "json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json rows = json::parse(outcome.out).at("tables").at(0).at("rows");
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].at("verified"), "NO");
  EXPECT_NE(rows[0].at("note").get<std::string>().find("/no/such/a.mtx"), std::string::npos);
}

}  // namespace
}  // namespace sparsellm
