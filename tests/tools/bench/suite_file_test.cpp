// Suites: those in configs, the cells that a file stands for, and what is refused.

#include "tools/bench/suite/suite_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using namespace sparsellm::testing;

fs::path configs() { return source_dir() / "configs"; }

Suite shipped(const std::string& name, SuiteFormats formats = SuiteFormats::listed) {
  const fs::path file = configs() / "benchmarks" / (name + ".json");
  return read_suite(file, suite_configs(file), formats);
}

std::vector<std::string> names_of(const Suite& suite) {
  std::vector<std::string> names;
  for (const SuiteCell& cell : suite.cells) {
    names.push_back(cell.name);
  }
  return names;
}

// Of a suite with these groups, and perhaps figures.
std::string suite_text(const std::string& groups, const std::string& stated = "") {
  return R"({"title": "T", "source": "S", "gpu": "A100", "framework": "F",
             "metric": "tokens_per_gpu_second", "cells": [)" +
         groups + "]" + (stated.empty() ? "" : R"(, "stated": [)" + stated + "]") + "}";
}

Suite read(const std::string& text, SuiteFormats formats = SuiteFormats::listed) {
  const TempDir folder;
  return read_suite(folder.write("suite.json", text), configs(), formats);
}

::testing::AssertionResult refuses(const std::string& text, const std::string& message) {
  return throws_error([&] { read(text); }, message);
}

TEST(SuiteFile, AllInConfigs) {
  const std::map<std::string, size_t> expected{
      {"flash_llm_fig13", 16},       {"flash_llm_fig14", 68},      {"flash_llm_fig15", 24},
      {"flash_llm_fig16", 52},       {"flash_llm_fig9_12", 148},   {"flash_llm_table1", 30},
      {"general_sparse_fig14", 384}, {"general_sparse_fig20", 42}, {"general_sparse_fig21", 12},
      {"sparse_infer_fig4", 8},      {"spinfer_fig10", 372},       {"spinfer_fig13_14", 630},
      {"spinfer_fig15", 18}};
  std::map<std::string, size_t> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(configs() / "benchmarks")) {
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

TEST(SuiteFile, CellsAreTheProductOfLists) {
  const Suite suite = read(suite_text(
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
  EXPECT_TRUE(fs::equivalent(last.engine()->config, configs() / "opt-30b.json"));
}

TEST(SuiteFile, NamesHaveWhatIsNotDefault) {
  const Suite suite = read(suite_text(
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
  EXPECT_EQ(first.records, LayoutFor::size);
  EXPECT_EQ(first.dtype, DType::bf16);
  EXPECT_EQ(first.engine()->gpu_memory_bytes, int64_t{24} << 30);
  EXPECT_TRUE(first.engine()->breakdown);
  EXPECT_EQ(suite.cells[2].records, LayoutFor::speed);
  EXPECT_TRUE(
      fs::equivalent(suite.cells[4].zeros.plan_file, configs() / "plans" / "flash-llm.json"));
}

TEST(SuiteFile, KernelsHaveShapesAndThoseOfModels) {
  const Suite suite = read(suite_text(
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
  EXPECT_EQ(read(suite_text(groups)).cells.size(), 5u);
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
  EXPECT_EQ(names_of(read(suite_text(groups), SuiteFormats::all)), expected);
}

TEST(SuiteFile, Patterns) {
  EXPECT_TRUE(matches_cell("*/b8/*", "opt-13b/dense/1gpu/b8/o512"));
  EXPECT_FALSE(matches_cell("*/b8", "opt-13b/dense/1gpu/b8/o512"));
  EXPECT_TRUE(matches_cell("x|*/n??|y", "64x48/dense/n16"));
  EXPECT_FALSE(matches_cell("x|*/n??|y", "64x48/dense/n8"));
  EXPECT_FALSE(matches_cell("", "64x48/dense/n8"));
}

constexpr char kEngineGroup[] =
    R"({"models": ["opt-13b"], "formats": ["dense", "tca_bme"], "sparsities": [0.6], "gpus": [1],
        "batches": [8], "outputs": [64]})";
constexpr char kKernelGroup[] =
    R"({"kind": "kernel", "shapes": ["64x48"], "formats": ["tca_bme"], "sparsities": [0.6],
        "tokens": [8]})";

// A group with one thing in it replaced.
std::string with(std::string group, const std::string& from, const std::string& to) {
  const size_t at = group.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return suite_text(group.replace(at, from.size(), to));
}

TEST(SuiteFile, WhatIsWrongOfASuiteIsNamed) {
  EXPECT_TRUE(
      throws_error([] { read_suite("/no/such/suite.json", configs()); }, "/no/such/suite.json"));
  EXPECT_TRUE(refuses("{", "suite.json"));
  EXPECT_TRUE(refuses("[]", "suite.json"));
  EXPECT_TRUE(refuses(suite_text(""), "cells has 0 elements; expected 1 to 256"));
  EXPECT_TRUE(refuses(suite_text("1"), "cells[0] is 1; expected an object"));
  const std::string good = suite_text(kEngineGroup);
  EXPECT_EQ(read(good).cells.size(), 2u);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  EXPECT_TRUE(refuses(changed(R"("title": "T")", R"("titel": "T")"),
                      R"(suite.json has the unknown key "titel")"));
  EXPECT_TRUE(refuses(changed(R"("title": "T", )", ""), "suite.json: title is missing"));
  EXPECT_TRUE(refuses(changed(R"("title": "T")", R"("title": "")"), "title"));
  EXPECT_TRUE(refuses(changed(R"("title": "T")", R"("title": "a\nb")"), "expected one line"));
  EXPECT_TRUE(refuses(changed(R"("gpu": "A100")", R"("gpu": 100)"), "suite.json: gpu is 100"));
  EXPECT_TRUE(refuses(changed(R"("source": "S")", R"("source": "S", "source": "S")"), "source"));
  EXPECT_TRUE(refuses(changed("tokens_per_gpu_second", "tokens"), "suite.json: metric"));
  EXPECT_TRUE(refuses(suite_text(std::string(kEngineGroup) + "," + kEngineGroup),
                      "cells[1] has the cell opt-13b/dense/1gpu/b8/o64, which an earlier group"));
}

TEST(SuiteFile, WhatIsWrongOfAGroupIsNamed) {
  struct Case {
    const char* from;
    const char* to;
    const char* message;
  };
  for (const Case& c : std::vector<Case>{
           {R"("gpus": [1])", R"("gpu": [1])", R"(cells[0] has the unknown key "gpu")"},
           {R"("gpus": [1])", R"("tokens": [1])", R"(cells[0] has the unknown key "tokens")"},
           {R"("gpus": [1])", R"("kind": "mlp")", "cells[0].kind is \"mlp\""},
           {R"("gpus": [1])", R"("gpus": 1)", "cells[0].gpus is 1; expected an array"},
           {R"("gpus": [1])", R"("gpus": [])", "cells[0].gpus has 0 elements"},
           {R"("gpus": [1])", R"("gpus": [1, 1])", "cells[0].gpus[1] is 1; it is in the list"},
           {R"("gpus": [1])", R"("gpus": [0])", "cells[0].gpus holds 0"},
           {R"("gpus": [1])", R"("gpus": [65])", "cells[0].gpus holds 65"},
           {R"("gpus": [1])", R"("gpus": [1.5])", "cells[0].gpus holds 1.5"},
           {R"("gpus": [1])", R"("gpus": [3])", "cells[0].gpus: opt-13b: 3 "},
           {R"("opt-13b")", R"("opt-13")", "cells[0].models: "},
           {R"("opt-13b")", R"("opt-13")", "opt-13.json: No such file"},
           {R"("opt-13b")", R"("../configs/opt-13b")", "cells[0].models has \"../configs"},
           {R"("opt-13b")", R"("/opt-13b")", "cells[0].models has \"/opt-13b\""},
           {R"("opt-13b")", R"("a/../opt-13b")", "cells[0].models has"},
           {R"("opt-13b")", R"("./opt-13b")", "cells[0].models has"},
           {R"("opt-13b")", R"("opt 13b")", "cells[0].models has"},
           {R"("opt-13b")", R"("")", "cells[0].models has \"\""},
           {R"("opt-13b")", R"("plans/flash-llm")", "cells[0].models: "},
           {R"("opt-13b")", R"("mixtral-8x7b")", "cells[0].models: "},
           {R"("opt-13b")", "3", "cells[0].models holds 3; expected strings"},
           {R"("opt-13b")", R"("opt-13b", "opt-13b")", "cells[0].models[1]"},
           {R"("models": ["opt-13b"], )", "", "cells[0].models is missing"},
           {R"("tca_bme")", R"("csr")", "cells[0].formats[1] is \"csr\"; expected one of dense, "},
           {R"("tca_bme")", R"("cusparse")", "cells[0].formats[1]"},
           {R"("tca_bme")", R"("dense")", "cells[0].formats[1]"},
           {R"("dense", "tca_bme")", R"("dense")", "cells[0].sparsities is an array; a group with"},
           {R"("sparsities": [0.6], )", "", "cells[0].sparsities is missing"},
           {R"("sparsities": [0.6])", R"("plans": ["flash-llm"], "sparsities": [0.6])",
            "cells[0].sparsities is an array; plans say"},
           {R"("sparsities": [0.6])", R"("plans": ["flash"])", "cells[0].plans: "},
           {R"("sparsities": [0.6])", R"("plans": ["../plans/flash-llm"])", "cells[0].plans has"},
           {"[0.6]", "[]", "cells[0].sparsities has 0 elements"},
           {"[0.6]", "[1.1]", "cells[0].sparsities[0] is 1.1"},
           {"[0.6]", "[-0.1]", "cells[0].sparsities[0] is -0.1"},
           {"[0.6]", "[1e999]", "suite.json"},
           {"[0.6]", "[NaN]", "suite.json"},
           {"[0.6]", "[\"0.6\"]", "cells[0].sparsities[0] is \"0.6\""},
           {"[0.6]", "[null]", "cells[0].sparsities[0]"},
           {"[0.6]", "[0.6, 0.6]", "cells[0].sparsities[1]"},
           {"[0.6]", R"([0.6], "patterns": ["diagonal"])", "cells[0].patterns[0] is \"diagonal\""},
           {"[0.6]", R"([0.6], "patterns": ["rows:9"])", "cells[0].patterns[0]"},
           {"[0.6]", R"([0.6], "patterns": ["outliers:0.5"])", "cells[0].patterns: outliers:0.5"},
           {"[0.6]", R"([0.6], "records": ["fast"])", "cells[0].records[0] is \"fast\""},
           {"[0.6]", R"([0.6], "dtype": "f32")", "cells[0].dtype is \"f32\""},
           {"[0.6]", R"([0.6], "dtype": ["f16"])", "cells[0].dtype is an array"},
           {"[0.6]", R"([0.6], "gpu_memory": ["24X"])", "cells[0].gpu_memory[0] is \"24X\""},
           {"[0.6]", R"([0.6], "gpu_memory": ["0G"])", "cells[0].gpu_memory[0]"},
           {"[0.6]", R"([0.6], "gpu_memory": ["99999999999T"])", "cells[0].gpu_memory[0]"},
           {"[0.6]", R"([0.6], "gpu_memory": [24])", "cells[0].gpu_memory"},
           {"[0.6]", R"([0.6], "breakdown": 1)", "cells[0].breakdown is 1"},
           {R"("batches": [8], )", "", "cells[0].batches is missing"},
           {"[8]", "[0]", "cells[0].batches holds 0"},
           {"[8]", "[9223372036854775808]", "cells[0].batches holds 9223372036854775808"},
           {"[64]", R"([64], "prompt": 0)", "cells[0].prompt is 0"},
           {"[64]", R"([64], "prompt": [64])", "cells[0].prompt is an array"},
           {"[64]", R"([64], "prompt": 1985)", "cells[0].outputs: opt-13b has 2048 positions"},
           {"[64]", "[1048577]", "cells[0].outputs holds 1048577"},
           {"[64]", R"([64], "activation_sparsity": {})", "cells[0].activation_sparsity"},
           {"[64]", R"([64], "activation_sparsity": [])", "cells[0].activation_sparsity has 0"},
           {"[64]", R"([64], "activation_sparsity": [{}])",
            "activation_sparsity[0].mode is missing"},
           {"[64]", R"([64], "activation_sparsity": [{"mode": "on"}])",
            "expected one of off, exact"},
           {"[64]", R"([64], "activation_sparsity": [{"mode": "off", "zeros": 0.5}])", "\"zeros\""},
           {"[64]", R"([64], "activation_sparsity": [{"mode": "exact", "votes": "sign"}])",
            "votes"},
           {"[64]", R"([64], "activation_sparsity": [{"mode": "exact", "zeros": 2}])",
            "zeros is 2"},
           {"[64]", R"([64], "activation_sparsity": [{"mode": "predict", "zeros": 0.5}])",
            "activation_sparsity[0].predicted is missing"},
           {"[64]",
            R"([64], "activation_sparsity": [{"mode": "predict", "predicted": 0.6, "zeros": 0.5}])",
            "what is predicted counts as zero"},
           {"[64]", R"([64], "activation_sparsity": [{"mode": "off"}, {"mode": "off"}])",
            "activation_sparsity[1] is an object; it is in the list already"},
       }) {
    EXPECT_TRUE(refuses(with(kEngineGroup, c.from, c.to), c.message)) << c.to;
  }
  // A model without zeros among its neurons.
  EXPECT_TRUE(refuses(suite_text(R"({"models": ["llama-2-7b"], "formats": ["dense"],
      "batches": [1], "activation_sparsity": [{"mode": "exact"}]})"),
                      "cells[0].activation_sparsity: llama-2-7b: activation sparsity needs relu"));
}

TEST(SuiteFile, WhatIsWrongOfKernelsIsNamed) {
  EXPECT_EQ(read(suite_text(kKernelGroup)).cells.size(), 1u);
  const auto refused = [](const char* from, const char* to, const char* message) {
    EXPECT_TRUE(refuses(with(kKernelGroup, from, to), message)) << to;
  };
  refused(R"("tokens": [8])", R"("batches": [8])", R"(unknown key "batches")");
  refused(R"("tokens": [8])", R"("tokens": [8], "plans": ["flash-llm"])", R"(unknown key "plans")");
  refused(R"("tokens": [8])", R"("tokens": [0])", "cells[0].tokens holds 0");
  refused(R"(, "sparsities": [0.6])", "", "cells[0].sparsities is missing");
  refused(R"("shapes": ["64x48"], )", "", "cells[0].models is missing");
  refused("64x48", "64", "cells[0].shapes[0] is \"64\"");
  refused("64x48", "0x48", "cells[0].shapes[0]");
  refused("64x48", "16777216x16777216", "cells[0].shapes[0]");
  refused("64x48", "9999999999999999999x1", "cells[0].shapes[0]");
  refused(R"("64x48")", R"("64x48", "64x48")", "cells[0].shapes[1]");
  refused("tca_bme", "auto", "cells[0].formats[0]");
  refused(R"("tokens": [8])", R"("tokens": [8], "models": ["opt"])", "cells[0].models: ");
}

TEST(SuiteFile, HasABoundOnItsCells) {
  const auto numbers = [](int count) {
    std::string text;
    for (int i = 1; i <= count; ++i) {
      text += (i == 1 ? "" : ",") + std::to_string(i);
    }
    return "[" + text + "]";
  };
  const auto text = [&](int batches, int outputs) {
    return suite_text(R"({"models": ["opt-13b"], "formats": ["dense"], "batches": )" +
                      numbers(batches) + R"(, "outputs": )" + numbers(outputs) + "}");
  };
  EXPECT_EQ(read(text(100, 100)).cells.size(), static_cast<size_t>(kMaxSuiteCells));
  EXPECT_TRUE(refuses(text(101, 100), "cells[0]: more than 10000 cells"));
  EXPECT_TRUE(refuses(text(257, 1), "cells[0].batches has 257 elements; expected 1 to 256"));
  const std::string group =
      R"("formats": ["dense"], "batches": )" + numbers(80) + R"(, "outputs": )" + numbers(80) + "}";
  EXPECT_TRUE(refuses(
      suite_text(R"({"models": ["opt-13b"], )" + group + R"(, {"models": ["opt-30b"], )" + group),
      "cells[1]: more than 10000 cells"));
}

TEST(SuiteFile, HasABoundOnItsCellsWithAllFormats) {
  std::string batches = "1";
  for (int i = 2; i <= 200; ++i) {
    batches += "," + std::to_string(i);
  }
  const std::string text = suite_text(
      R"({"models": ["opt-13b"], "formats": ["tca_bme"], "sparsities": [0.1, 0.2, 0.3, 0.4, 0.5,
          0.6, 0.7, 0.8, 0.9], "batches": [)" +
      batches + "], \"outputs\": [1, 2, 3]}");
  EXPECT_TRUE(refuses(text, "cells[0]: more than 10000 cells with all formats"));
}

TEST(SuiteFile, HasABoundOnStatedValues) {
  std::string numbers = "1";
  for (int i = 2; i <= 101; ++i) {
    numbers += "," + std::to_string(i);
  }
  const std::string figure = R"({"what": "W", "unit": "x", "place": "P", "at": [)" + numbers +
                             R"(], "values": [)" + numbers + "]}";
  EXPECT_EQ(read(suite_text(kEngineGroup, figure)).stated[0].points.size(), 101u);
  EXPECT_TRUE(refuses(suite_text(kEngineGroup, figure + "," + figure),
                      "stated[1]: the suite has more than 200 stated values"));
}

TEST(SuiteFile, WhatIsWrongOfAStatedFigureIsNamed) {
  const auto stated = [](const std::string& members) {
    return suite_text(kEngineGroup, R"({"what": "W", "unit": "x", "place": "P", )" + members + "}");
  };
  const Suite good =
      read(stated(R"("cells": "*/tca_bme/*/b{}/*", "over": "*/tiled_csl/*", "at": [8],
                                    "values": [1.5], "statistic": "share_faster",
                                    "metric": "decode_ms", "gpu": "H100")"));
  ASSERT_EQ(good.stated.size(), 1u);
  EXPECT_EQ(good.stated[0].gpu, "H100");
  EXPECT_EQ(good.stated[0].framework, "F");
  EXPECT_EQ(good.stated[0].metric, "decode_ms");
  EXPECT_EQ(good.stated[0].statistic, StatedFigure::Statistic::share_faster);
  EXPECT_EQ(read(stated(R"("value": 3)")).stated[0].points[0].cells, "");

  EXPECT_TRUE(
      refuses(stated(R"("value": "yes")"), "stated[0].value is \"yes\"; expected a number"));
  EXPECT_TRUE(refuses(stated(R"("value": -1)"), "stated[0].value is -1"));
  EXPECT_TRUE(refuses(stated(R"("value": 1e300)"), "stated[0].value"));
  EXPECT_TRUE(refuses(stated(R"("cells": "*")"), "stated[0].value is missing"));
  EXPECT_TRUE(refuses(stated(R"("values": [1])"), R"(unknown key "values")"));
  EXPECT_TRUE(refuses(stated(R"("at": [8], "value": 1)"), R"(unknown key "value")"));
  EXPECT_TRUE(refuses(stated(R"("at": [8], "values": [1, 2])"), "stated[0].values has 2 elements"));
  EXPECT_TRUE(refuses(stated(R"("at": [8, 8], "values": [1, 2])"), "stated[0].at[1]"));
  EXPECT_TRUE(refuses(stated(R"("at": [], "values": [])"), "stated[0].at has 0 elements"));
  EXPECT_TRUE(refuses(stated(R"("at": [8], "values": [1], "cells": "*/b8/*")"),
                      "stated[0].cells is \"*/b8/*\"; all elements"));
  EXPECT_TRUE(refuses(stated(R"("at": [16], "values": [1], "cells": "*/b{}/*")"),
                      "stated[0].cells: \"*/b16/*\" matches no cell"));
  EXPECT_TRUE(refuses(stated(R"("value": 1, "cells": "*/b{}/*")"), "expected a pattern"));
  EXPECT_TRUE(refuses(stated(R"("value": 1, "cells": "")"), "expected a pattern"));
  EXPECT_TRUE(
      refuses(stated(R"("value": 1, "cells": "*", "over": "*/csr/*")"), "stated[0].over: "));
  EXPECT_TRUE(
      refuses(stated(R"("value": 1, "over": "*")"), "stated[0].over is \"*\"; there are no"));
  EXPECT_TRUE(refuses(stated(R"("value": 1, "statistic": "median")"), "stated[0].statistic"));
  EXPECT_TRUE(refuses(stated(R"("value": 1, "metric": "time")"), "stated[0].metric"));
  EXPECT_TRUE(refuses(stated(R"("value": 1, "gpu": "")"), "stated[0].gpu"));
  EXPECT_TRUE(refuses(suite_text(kEngineGroup, R"({"what": "W"})"), "stated[0].unit is missing"));
  EXPECT_TRUE(refuses(suite_text(kEngineGroup, "7"), "stated[0] is 7"));
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
