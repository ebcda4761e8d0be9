// sparsellm-bench cost-model without a GPU: a model that is fitted to the times of earlier reports.

#include "tools/bench/cost_model.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/general_sparse/search/plan_search.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"
#include "tests/tools/bench/report_tables.h"
#include "tools/bench/matrix_list.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using general_sparse::CostModel;
using general_sparse::Order;
using general_sparse::PlanCounts;
using general_sparse::RankedPlan;
using nlohmann::json;
using namespace sparsellm::testing;

constexpr std::string_view kList = R"({"matrices": [
    {"name": "flat", "class": "uniform", "rows": 300, "columns": 200, "nonzeros": 1500, "seed": 1},
    {"name": "long rows", "class": "power-law", "rows": 900, "columns": 700, "nonzeros": 9000,
     "seed": 2}]})";

json plan_row(const std::string& matrix, DType dtype, int64_t n, Order order) {
  return {{"table", "plans"},
          {"matrix", matrix},
          {"dtype", name_of(dtype)},
          {"n", n},
          {"order", order == Order::rows ? "rows" : "columns"}};
}

class CostModelReport : public ::testing::Test {
 protected:
  // As a GPU would be measured by which the model is right: some plans of each product.
  std::string made_report(const std::string& gpu, DType dtype) {
    std::string text = json{{"table", "environment"}, {"gpu", gpu}}.dump() + "\n";
    for (const MatrixSource& source : list_) {
      const general_sparse::MatrixSample sample =
          general_sparse::sample_of(with_dtype(source.make(threads_), dtype, threads_), threads_);
      PlanCounts counts(sample);
      for (const Order order : {Order::rows, Order::columns}) {
        for (const int64_t n : {1, 8, 64}) {
          json row = plan_row(source.name, dtype, n, order);
          row["plan"] = "rows of the program";
          row["time_us"] = 9.0;
          text += row.dump() + "\n";
          const std::vector<RankedPlan> plans =
              ranked({.dtype = dtype, .layout = sample.layout, .n = n, .order = order}, counts,
                     CostModel::built_in());
          for (size_t i = 0; i < plans.size(); i += 6) {
            row["plan"] = "plan " + to_text(plans[i].plan);
            row["time_us"] = plans[i].seconds * 1e6;
            text += row.dump() + "\n";
            made_.push_back(plans[i]);
          }
        }
      }
    }
    return text;
  }

  CostModelOptions options() {
    CostModelOptions options;
    options.matrices = list_;
    options.write = folder_.path() / "model.json";
    return options;
  }

  TempDir folder_;
  ThreadPool threads_{2};
  std::vector<MatrixSource> list_ = read_matrix_list(folder_.write("list.json", kList));
  std::vector<RankedPlan> made_;
};

TEST_F(CostModelReport, AModelIsFittedToReports) {
  CostModelOptions options = this->options();
  for (const DType dtype : {DType::f32, DType::f16}) {
    const std::string name = std::string(name_of(dtype)) + ".jsonl";
    options.samples.push_back(folder_.write(name, made_report("GPU 1", dtype)).string());
  }
  Report report;
  report_cost_model(options, report.writer());
  const json rows = report.table("fit");
  EXPECT_EQ(report.table("plans"), json::array());
  ASSERT_EQ(rows.size(), general_sparse::kAccessClasses);
  size_t samples = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].at("class"), general_sparse::access_class_name(i));
    EXPECT_GT(rows[i].at("samples"), 0);
    EXPECT_LT(rows[i].at("error_percent"), 2.0) << rows[i];
    samples += rows[i].at("samples").get<size_t>();
  }
  EXPECT_EQ(samples, made_.size());

  const CostModel model = CostModel::read(options.write);
  EXPECT_EQ(model.gpu(), "GPU 1");
  for (const RankedPlan& made : made_) {
    const double seconds = model.seconds(access_class(made.plan), made.features);
    ASSERT_NEAR(seconds, made.seconds, 0.25 * made.seconds) << to_text(made.plan);
  }
}

TEST_F(CostModelReport, MatricesThatAreNotListedAreLeftOut) {
  CostModelOptions options = this->options();
  options.samples = {folder_.write("report.jsonl", made_report("GPU 1", DType::bf16)).string()};
  const size_t all = made_.size();
  options.matrices.pop_back();
  Report report;
  report_cost_model(options, report.writer());
  size_t samples = 0;
  for (const json& row : report.table("fit")) {
    samples += row.at("samples").get<size_t>();
  }
  EXPECT_GT(samples, 0u);
  EXPECT_LT(samples, all);
}

TEST_F(CostModelReport, WhatMakesNoSenseIsRefusedAndNothingIsWritten) {
  const std::string good = folder_.write("good.jsonl", made_report("GPU 1", DType::f32)).string();
  const std::string other = folder_.write("other.jsonl", made_report("GPU 2", DType::f32)).string();
  const auto refuses = [&](const auto& change, std::string_view why) {
    CostModelOptions options = this->options();
    options.samples = {good};
    change(options);
    Report report;
    return throws_error([&] { report_cost_model(options, report.writer()); }, why);
  };
  EXPECT_TRUE(refuses([](CostModelOptions& options) { options.matrices.clear(); }, "no matrices"));
  EXPECT_TRUE(refuses(
      [&](CostModelOptions& options) {
        options.samples = {good, other};
      },
      "other.jsonl has times of another GPU, GPU 2, than of GPU 1"));
  EXPECT_TRUE(refuses(
      [&](CostModelOptions& options) {
        options.samples = {(folder_.path() / "none.jsonl").string()};
      },
      "none.jsonl"));
  EXPECT_TRUE(refuses(
      [](CostModelOptions& options) {
        options.matrices[0].name = "new";
        options.matrices.pop_back();
      },
      "no times of generated kernels for these matrices"));
  EXPECT_TRUE(refuses(
      [&](CostModelOptions& options) {
        options.samples = {folder_.write("name.jsonl", made_report("a\nb", DType::f32)).string()};
      },
      "expected 1 to 100 printable characters"));
  EXPECT_TRUE(refuses([](CostModelOptions& options) { options.samples.clear(); },
                      "plans are measured on CUDA devices, not on cpu"));
  EXPECT_TRUE(refuses(
      [&](CostModelOptions& options) { options.write = folder_.path() / "none" / "model.json"; },
      "none/model.json"));
  std::set<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_.path())) {
    files.insert(entry.path().filename().string());
  }
  EXPECT_EQ(files, (std::set<std::string>{"good.jsonl", "list.json", "name.jsonl", "other.jsonl"}));
}

}  // namespace
}  // namespace sparsellm
