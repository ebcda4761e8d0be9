// Times of plans out of earlier reports.

#include "tools/bench/cost_samples.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/general_sparse/plan.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using general_sparse::KernelPlan;
using general_sparse::Order;
using namespace sparsellm::testing;

constexpr const char* kEnvironment = R"({"table":"environment","gpu":"GPU 1","commit":"c"})"
                                     "\n";

std::string row(const std::string& members) { return R"({"table":"plans",)" + members + "}\n"; }

std::string plan_row(const KernelPlan& plan = {}) {
  return row(fmt::format(R"("matrix":"m","dtype":"f16","n":8,"order":"columns","plan":"plan {}",)"
                         R"("predicted_us":3.5,"time_us":12.5)",
                         to_text(plan)));
}

TEST(CostSamples, AreTheRowsOfPlans) {
  const TempDir folder;
  const std::string text =
      kEnvironment + plan_row() +
      row(R"("matrix":"m","dtype":"f16","n":8,"order":"rows","plan":"rows 4 warps","time_us":1)") +
      R"({"table":"search","matrix":"m","plans":1})"
      "\n" +
      R"({"rows":1})"
      "\n" +
      row(fmt::format(R"("matrix":"other","dtype":"f32","n":1,"order":"rows","plan":"plan {}",)"
                      R"("predicted_us":null,"time_us":0.0015)",
                      to_text(KernelPlan{.step_nonzeros = 4, .threads = 256})));
  // With a newline at the end, and without.
  for (const std::string& report : {text, text.substr(0, text.size() - 1)}) {
    const CostSamples read = read_cost_samples(folder.write("report.jsonl", report));
    EXPECT_EQ(read.gpu, "GPU 1");
    ASSERT_EQ(read.samples.size(), 2u);
    EXPECT_EQ(read.samples[0].matrix, "m");
    EXPECT_EQ(read.samples[0].dtype, DType::f16);
    EXPECT_EQ(read.samples[0].n, 8);
    EXPECT_EQ(read.samples[0].order, Order::columns);
    EXPECT_EQ(read.samples[0].plan, KernelPlan());
    EXPECT_DOUBLE_EQ(read.samples[0].seconds, 12.5e-6);
    EXPECT_EQ(read.samples[1].matrix, "other");
    EXPECT_EQ(read.samples[1].dtype, DType::f32);
    EXPECT_EQ(read.samples[1].order, Order::rows);
    EXPECT_EQ(read.samples[1].plan.threads, 256);
    EXPECT_DOUBLE_EQ(read.samples[1].seconds, 1.5e-9);
  }
}

// The file, and where one is wrong the line.
TEST(CostSamples, WrongReportsAreRefused) {
  const TempDir folder;
  const auto refuses = [&](const std::string& text, const std::string& place) {
    return throws_error([&] { read_cost_samples(folder.write("report.jsonl", text)); }, place);
  };
  const std::string good = plan_row();
  EXPECT_TRUE(refuses("", "report.jsonl has no times of plans on a GPU"));
  EXPECT_TRUE(refuses(kEnvironment, "report.jsonl has no times of plans on a GPU"));
  EXPECT_TRUE(refuses(good, "report.jsonl has no times of plans on a GPU"));
  EXPECT_TRUE(refuses(R"({"table":"environment","device":"cpu"})"
                      "\n" +
                          good,
                      "report.jsonl has no times of plans on a GPU"));
  EXPECT_TRUE(refuses(R"({"table":"environment","gpu":7})"
                      "\n" +
                          good,
                      "report.jsonl(1): gpu is 7"));
  EXPECT_TRUE(throws_error([&] { read_cost_samples(folder.path() / "none.jsonl"); }, "none.jsonl"));

  const std::string second = kEnvironment + good.substr(0, good.size() - 2);  // one that is open
  for (const std::string& line :
       {std::string("\n"), std::string("{\n"), std::string("[1]\n"), std::string("7\n"),
        std::string("null\n"), std::string(1, '\0') + "\n", std::string("\xff\xfe\n"),
        good + good.substr(1), std::string(100, '[') + "\n",
        std::string(R"({"table":3})"
                    "\n")}) {
    EXPECT_TRUE(refuses(kEnvironment + line + good, "report.jsonl(2)") ||
                refuses(kEnvironment + line + good, "report.jsonl(3)"))
        << line;
  }
  EXPECT_TRUE(refuses(second, "report.jsonl(2)"));

  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return kEnvironment + good + text.replace(at, from.size(), to);
  };
  struct Case {
    std::string from, to, place;
  };
  const std::vector<Case> cases{
      {R"("matrix":"m",)", "", "matrix"},
      {R"("matrix":"m")", R"("matrix":null)", "matrix"},
      {R"("dtype":"f16")", R"("dtype":"f64")", "dtype is \"f64\"; expected f32, f16 or bf16"},
      {R"("dtype":"f16")", R"("dtype":16)", "dtype is 16"},
      {R"("n":8)", R"("n":0)", "n is 0"},
      {R"("n":8)", R"("n":8.5)", "n is 8.5"},
      {R"("n":8)", R"("n":1048577)", "n is 1048577"},
      {R"("n":8)", R"("n":"8")", "n is \"8\""},
      {R"("order":"columns")", R"("order":"both")", "order is \"both\"; expected rows or columns"},
      {R"("order":"columns",)", "", "order"},
      {R"("plan":"plan )", R"("plan":"plan  )", "plan"},
      {"thread-nonzeros=0", "thread-nonzeros=3", "plan: "},
      {"threads=128", "threads=128 and=more", "plan: "},
      {"token-warps=1", "token-warps=999999999999", "plan: "},
      {R"("plan":"plan )", R"("plan":3,"p":")", "plan is 3"},
      {R"(,"time_us":12.5)", "", "time_us"},
      {R"("time_us":12.5)", R"("time_us":0)", "time_us is 0"},
      {R"("time_us":12.5)", R"("time_us":-1)", "time_us is -1"},
      {R"("time_us":12.5)", R"("time_us":1e-300)", "time_us is "},
      {R"("time_us":12.5)", R"("time_us":1e300)", "time_us is "},
      {R"("time_us":12.5)", R"("time_us":1e999)", ""},
      {R"("time_us":12.5)", R"("time_us":NaN)", ""},
      {R"("time_us":12.5)", R"("time_us":null)", "time_us"},
      {R"("time_us":12.5)", R"("time_us":"12.5")", "time_us is \"12.5\""},
      {R"("time_us":12.5)", R"("time_us":12.5,"time_us":1)", "time_us"},
  };
  for (const Case& c : cases) {
    EXPECT_TRUE(refuses(with(c.from, c.to), c.place)) << c.to;
    EXPECT_TRUE(refuses(with(c.from, c.to), "report.jsonl(3)")) << c.to;
  }
}

}  // namespace
}  // namespace sparsellm
