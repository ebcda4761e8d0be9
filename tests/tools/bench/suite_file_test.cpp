// Reading suites: the shipped ones, and the cells that a file expands to.

#include "tools/bench/suite/suite_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/base/mapped_file.h"
#include "tests/testing/paths.h"
#include "tests/tools/bench/suite_text.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using namespace sparsellm::testing;

Suite shipped(const std::string& name, SuiteFormats formats = SuiteFormats::listed) {
  const fs::path file = suite_test_configs() / "benchmarks" / (name + ".json");
  return read_suite(file, suite_configs(file), formats);
}

std::vector<std::string> names_of(const Suite& suite) {
  std::vector<std::string> names;
  for (const SuiteCell& cell : suite.cells) {
    names.push_back(cell.name);
  }
  return names;
}

TEST(SuiteFile, AllInConfigs) {
  const std::map<std::string, size_t> expected{
      {"flash_llm_fig13", 16},       {"flash_llm_fig14", 68},      {"flash_llm_fig15", 24},
      {"flash_llm_fig16", 52},       {"flash_llm_fig9_12", 148},   {"flash_llm_table1", 30},
      {"general_sparse_fig14", 384}, {"general_sparse_fig20", 42}, {"general_sparse_fig21", 12},
      {"sparse_infer_fig4", 8},      {"spinfer_fig10", 372},       {"spinfer_fig13_14", 630},
      {"spinfer_fig15", 18}};
  std::map<std::string, size_t> found;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(suite_test_configs() / "benchmarks")) {
    ASSERT_EQ(entry.path().extension(), ".json");
    const std::string name = entry.path().stem().string();
    SCOPED_TRACE(name);
    const Suite suite = shipped(name);
    EXPECT_EQ(suite.name, name);
    found[name] = suite.cells.size();
    const std::vector<std::string> names = names_of(suite);
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
    // Cells of a load lie together.
    std::set<std::string> loads;
    for (size_t i = 0; i < suite.cells.size(); ++i) {
      const SuiteCell& cell = suite.cells[i];
      EXPECT_TRUE(cell.name.starts_with(cell.load + "/")) << cell.name;
      if (i == 0 || suite.cells[i - 1].load != cell.load) {
        EXPECT_TRUE(loads.insert(cell.load).second) << cell.load;
      }
    }
    // All formats: more cells, and none has another name.
    const std::vector<std::string> all = names_of(shipped(name, SuiteFormats::all));
    EXPECT_TRUE(std::ranges::all_of(
        names, [&](const std::string& cell) { return std::ranges::find(all, cell) != all.end(); }));
    EXPECT_GE(all.size(), names.size());
  }
  EXPECT_EQ(found, expected);
}

TEST(SuiteFile, WhatThePapersState) {
  const Suite suite = shipped("flash_llm_fig13");
  EXPECT_EQ(suite.gpu, "A100");
  ASSERT_EQ(suite.stated.size(), 5u);
  const StatedFigure& most = suite.stated[0];
  EXPECT_EQ(most.statistic, StatedFigure::Statistic::most);
  ASSERT_EQ(most.points.size(), 1u);
  EXPECT_EQ(most.points[0].value, 359.0);
  EXPECT_EQ(most.framework, "FasterTransformer");
  EXPECT_EQ(suite.stated[1].framework, "DeepSpeed");
  const StatedFigure& ratios = suite.stated[3];
  ASSERT_EQ(ratios.points.size(), 4u);
  EXPECT_EQ(ratios.points[1].at, "16");
  EXPECT_EQ(ratios.points[1].value, 1.7);
  EXPECT_EQ(ratios.points[1].cells, "opt-30b/tiled_csl/plan:flash-llm/1gpu/b16/o512");
  EXPECT_EQ(ratios.points[1].over, "opt-30b/dense/2gpu/b16/o512");
  EXPECT_EQ(ratios.unit, "x");

  const Suite memory = shipped("flash_llm_table1");
  EXPECT_EQ(memory.stated[0].points.back().outcome, StatedFigure::Outcome::out_of_memory);
  const Suite spinfer = shipped("spinfer_fig13_14");
  EXPECT_EQ(std::ranges::count_if(spinfer.stated,
                                  [](const StatedFigure& figure) {
                                    return figure.points[0].outcome == StatedFigure::Outcome::fits;
                                  }),
            3);
  // Each cell of figure 9 is in the mean of its share of zeros, and none of figure 12.
  const Suite kernels = shipped("flash_llm_fig9_12");
  for (const StatedFigure::Point& point : kernels.stated[0].points) {
    EXPECT_EQ(std::ranges::count_if(
                  kernels.cells,
                  [&](const SuiteCell& cell) { return matches_cell(point.cells, cell.name); }),
              48)
        << point.cells;
  }
}

TEST(SuiteFile, TheOneInTheManual) {
  std::string page = read_text_file(source_dir() / "docs" / "bench.md", 1 << 20);
  page.erase(0, page.find("\n## Suites\n"));
  page.erase(0, page.find("```json\n") + 8);
  const Suite suite = read_suite_of(page.substr(0, page.find("```")));
  EXPECT_EQ(suite.cells.size(), 6u);
  EXPECT_EQ(suite.stated.size(), 1u);
}

TEST(SuiteFile, CellsAreTheProductOfLists) {
  const Suite suite = read_suite_of(suite_text(
      R"({"models": ["opt-13b", "opt-30b"], "formats": ["dense", "tca_bme"], "gpus": [1, 2],
          "sparsities": [0.6, 0.8], "batches": [8, 1], "outputs": [64, 512]})"));
  // 2 models, 2 numbers of GPUs, dense and two shares of zeros, 2 batches, 2 outputs.
  ASSERT_EQ(suite.cells.size(), 48u);
  EXPECT_EQ(suite.cells[0].name, "opt-13b/dense/1gpu/b8/o64");
  EXPECT_EQ(suite.cells[1].name, "opt-13b/dense/1gpu/b8/o512");
  EXPECT_EQ(suite.cells[2].name, "opt-13b/dense/1gpu/b1/o64");
  EXPECT_EQ(suite.cells[4].name, "opt-13b/tca_bme/s0.6/1gpu/b8/o64");
  EXPECT_EQ(suite.cells[4].load, "opt-13b/tca_bme/s0.6/1gpu");
  EXPECT_EQ(suite.cells[47].name, "opt-30b/tca_bme/s0.8/2gpu/b1/o512");
  const SuiteCell& last = suite.cells[47];
  EXPECT_EQ(last.zeros.sparsity, 0.8);
  ASSERT_NE(last.engine(), nullptr);
  EXPECT_EQ(last.kernel(), nullptr);
  EXPECT_EQ(last.engine()->gpus, 2);
  EXPECT_EQ(last.engine()->batch, 1);
  EXPECT_EQ(last.engine()->prompt, 64);
  EXPECT_EQ(last.engine()->output, 512);
  EXPECT_TRUE(fs::equivalent(last.engine()->config, suite_test_configs() / "opt-30b.json"));
}

TEST(SuiteFile, NamesHaveWhatIsNotDefault) {
  const Suite suite = read_suite_of(suite_text(
      R"({"models": ["opt-13b"], "formats": ["tca_bme", "tiled_csl"], "sparsities": [0.8],
          "patterns": ["uniform", "rows:0.5"], "records": ["size"], "dtype": "bf16",
          "gpu_memory": ["24G"], "batches": [8], "prompt": 128, "breakdown": true,
          "activation_sparsity": [{"mode": "exact"}]},
         {"models": ["opt-13b"], "formats": ["auto"], "plans": ["flash-llm"], "batches": [8],
          "activation_sparsity": [{"mode": "off"}, {"mode": "exact", "zeros": 0.9},
            {"mode": "predict", "predicted": 0.8, "zeros": 0.89}]})"));
  const std::vector<std::string> expected{
      "opt-13b/tca_bme/s0.8/size/exact/bf16/1gpu/24G/breakdown/b8/p128/o512",
      "opt-13b/tca_bme/s0.8/rows:0.5/size/exact/bf16/1gpu/24G/breakdown/b8/p128/o512",
      // Its records are no matter of this format.
      "opt-13b/tiled_csl/s0.8/exact/bf16/1gpu/24G/breakdown/b8/p128/o512",
      "opt-13b/tiled_csl/s0.8/rows:0.5/exact/bf16/1gpu/24G/breakdown/b8/p128/o512",
      "opt-13b/auto/plan:flash-llm/1gpu/b8/o512",
      "opt-13b/auto/plan:flash-llm/exact:0.9/1gpu/b8/o512",
      "opt-13b/auto/plan:flash-llm/predict:0.8:0.89:weighted/1gpu/b8/o512"};
  EXPECT_EQ(names_of(suite), expected);
  const SuiteCell& first = suite.cells[0];
  EXPECT_EQ(first.records, "size");
  EXPECT_EQ(first.dtype, DType::bf16);
  EXPECT_EQ(first.engine()->gpu_memory_bytes, int64_t{24} << 30);
  EXPECT_TRUE(first.engine()->breakdown);
  EXPECT_EQ(suite.cells[2].records, "");
  EXPECT_TRUE(fs::equivalent(suite.cells[4].zeros.plan_file,
                             suite_test_configs() / "plans" / "flash-llm.json"));
}

TEST(SuiteFile, KernelsHaveShapesAndThoseOfModels) {
  const Suite suite = read_suite_of(suite_text(
      R"({"kind": "kernel", "shapes": ["7168x7168", "64x48"], "models": ["opt-30b", "mixtral-8x7b"],
          "formats": ["tiled_csl", "cusparse"], "sparsities": [0.7], "tokens": [8, 16]})"));
  // 7168x7168 is one of OPT-30B's four; Mixtral has four.
  EXPECT_EQ(suite.cells.size(), size_t{(2 + 3 + 4) * 2 * 2});
  EXPECT_EQ(suite.cells[0].name, "7168x7168/tiled_csl/s0.7/n8");
  EXPECT_EQ(suite.cells[3].name, "7168x7168/cusparse/s0.7/n16");
  EXPECT_EQ(suite.cells[4].name, "64x48/tiled_csl/s0.7/n8");
  ASSERT_NE(suite.cells[4].kernel(), nullptr);
  EXPECT_EQ(suite.cells[4].kernel()->out, 64);
  EXPECT_EQ(suite.cells[4].kernel()->in, 48);
  EXPECT_EQ(suite.cells[4].kernel()->tokens, 8);
}

TEST(SuiteFile, AllFormatsAreAddedToSparseGroups) {
  const std::string groups =
      R"({"models": ["opt-13b"], "formats": ["tca_bme"], "sparsities": [0.8], "batches": [8]},
         {"models": ["opt-13b"], "formats": ["tiled_csl"], "sparsities": [0.8], "batches": [8, 16]},
         {"models": ["opt-13b"], "formats": ["dense"], "gpus": [2], "batches": [8]},
         {"kind": "kernel", "shapes": ["64x48"], "formats": ["tca_bme"], "sparsities": [0.8],
          "tokens": [1]})";
  EXPECT_EQ(read_suite_of(suite_text(groups)).cells.size(), 5u);
  const std::vector<std::string> expected{"opt-13b/tca_bme/s0.8/1gpu/b8/o512",
                                          "opt-13b/tca_bme/s0.8/1gpu/b16/o512",
                                          "opt-13b/dense/1gpu/b8/o512",
                                          "opt-13b/dense/1gpu/b16/o512",
                                          "opt-13b/tiled_csl/s0.8/1gpu/b8/o512",
                                          "opt-13b/tiled_csl/s0.8/1gpu/b16/o512",
                                          "opt-13b/general_sparse/s0.8/1gpu/b8/o512",
                                          "opt-13b/general_sparse/s0.8/1gpu/b16/o512",
                                          "opt-13b/dense/2gpu/b8/o512",
                                          "64x48/tca_bme/s0.8/n1",
                                          "64x48/tiled_csl/s0.8/n1",
                                          "64x48/general_sparse/s0.8/n1"};
  EXPECT_EQ(names_of(read_suite_of(suite_text(groups), SuiteFormats::all)), expected);
}

TEST(SuiteFile, Patterns) {
  EXPECT_TRUE(matches_cell("*/b8/*", "opt-13b/dense/1gpu/b8/o512"));
  EXPECT_FALSE(matches_cell("*/b8", "opt-13b/dense/1gpu/b8/o512"));
  EXPECT_TRUE(matches_cell("x|*/n??|y", "64x48/dense/n16"));
  EXPECT_FALSE(matches_cell("x|*/n??|y", "64x48/dense/n8"));
  EXPECT_FALSE(matches_cell("", "64x48/dense/n8"));
}

TEST(SuiteFile, ConfigsAreAboveTheFolderOfTheFile) {
  EXPECT_EQ(suite_configs("configs/benchmarks/a.json"), fs::path("configs/"));
  EXPECT_EQ(suite_configs("/x/configs/benchmarks/a.json"), fs::path("/x/configs/"));
  EXPECT_EQ(suite_configs("benchmarks/a.json"), fs::path("."));
  EXPECT_EQ(suite_configs("a.json"), fs::path(".."));
  EXPECT_EQ(suite_configs("../a.json"), fs::path("../.."));
}

}  // namespace
}  // namespace sparsellm
