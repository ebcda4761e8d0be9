// Kernels of plans, as the run-time compiler takes them. No GPU is needed to compile.

#include "sparse/general_sparse/plan_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/parallel.h"
#include "kernels/base/run_time_compiler.h"
#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace general_sparse;
using testing::Random;

constexpr int kArchitectures[] = {80, 90};

// An offset function of each form.
std::vector<OffsetFunction> all_forms() {
  std::vector<OffsetFunction> forms;
  for (const char* text :
       {"linear count=100 a=4 b=7", "branch count=12 ends=3,9,12 values=0,5,7",
        "cyclic count=12 a=8 c=0,2,5", "quasi-linear-u8 count=4 a=3 b=1 residuals=0,2,255,0",
        "quasi-linear-u16 count=3 a=3 b=1 residuals=0,2,256", "array count=3 values=5,9,2"}) {
    forms.push_back(OffsetFunction::from_text(text));
  }
  return forms;
}

PlanFacts some_facts(const KernelPlan& plan, Random& random) {
  static const std::vector<OffsetFunction> forms = all_forms();
  const auto form = [&] { return forms[static_cast<size_t>(random.below(std::ssize(forms)))]; };
  // Few sums: kernels with many take seconds to compile.
  const int most_rows = std::max(32 / (plan.tokens_per_thread * plan.step_nonzeros), 1);
  const std::array types{DType::f32, DType::f16, DType::bf16};
  return {.dtype = types[static_cast<size_t>(random.below(3))],
          .positions = random.below(2) == 0 ? PositionCode::u16 : PositionCode::u32,
          .shared_rows = std::min(1 << random.below(4), most_rows),
          .group_loads = random.below(2) == 0 ? 0 : plan.thread_nonzeros / plan.a_vector,
          .part_begin = form(),
          .row = form()};
}

// Plans in which each value of each field appears, from among all for some numbers of tokens. Few
// plans have rare values: each is of the least common value of some field among those taken so far.
std::vector<KernelPlan> different_plans(int count, Random& random) {
  std::vector<KernelPlan> all;
  for (const int64_t tokens : {1, 2, 8, 32}) {
    const std::vector<KernelPlan> more = enumerate_plans({.tokens = tokens,
                                                          .threads = {32, 128, 1024},
                                                          .thread_nonzeros = {0, 1, 4, 64},
                                                          .steps = {1, 4, 8}});
    for (int i = 0; i < 400; ++i) {
      all.push_back(more[static_cast<size_t>(random.below(std::ssize(more)))]);
    }
  }
  const auto words_of = [](const KernelPlan& plan) {
    std::vector<std::string> words;
    std::string text = to_text(plan) + " ";
    for (size_t at = 0, end = 0; (end = text.find(' ', at)) != std::string::npos; at = end + 1) {
      words.push_back(text.substr(at, end - at));
    }
    return words;
  };
  std::set<std::string> seen;
  std::vector<KernelPlan> plans;
  while (std::ssize(plans) < count) {
    const auto news = [&](const KernelPlan& plan) {
      const std::vector<std::string> words = words_of(plan);
      return std::count_if(words.begin(), words.end(),
                           [&](const std::string& word) { return !seen.contains(word); });
    };
    const auto best = std::max_element(
        all.begin(), all.end(),
        [&](const KernelPlan& a, const KernelPlan& b) { return news(a) < news(b); });
    const std::vector<std::string> words = words_of(*best);
    seen.insert(words.begin(), words.end());
    plans.push_back(*best);
    all.erase(best);
  }
  return plans;
}

TEST(GeneralSparsePlanSource, SixtyPlansCompile) {
  RunTimeCompiler compiler;
  if (const std::string problem = compiler.why_not(); !problem.empty()) {
    GTEST_SKIP() << problem;
  }
  constexpr uint64_t kSeed = 71;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  const std::vector<KernelPlan> plans = different_plans(60, random);
  std::vector<PlanFacts> facts;
  facts.reserve(plans.size());
  for (const KernelPlan& plan : plans) {
    facts.push_back(some_facts(plan, random));
  }
  ThreadPool threads(2);
  threads.parallel_for(std::ssize(plans), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      for (const int architecture : kArchitectures) {
        const KernelSource source = plan_source(plans[i], facts[i], architecture);
        try {
          EXPECT_GT(compiler.compile(source).size(), 1000u);
        } catch (const Error& error) {
          ADD_FAILURE() << to_text(plans[i]) << ": " << error.what();
        }
      }
    }
  });
}

TEST(GeneralSparsePlanSource, IsOfPlanAndFactsAlone) {
  const PlanFacts facts{.dtype = DType::bf16,
                        .positions = PositionCode::u32,
                        .shared_rows = 4,
                        .group_loads = 0,
                        .part_begin = OffsetFunction::from_text("linear count=100 a=4 b=0"),
                        .row = OffsetFunction::from_text("array count=3 values=5,9,2")};
  const KernelSource source = plan_source({}, facts, 90);
  EXPECT_EQ(source.text, plan_source({}, facts, 90).text);
  EXPECT_EQ(source.architecture, 90);
  EXPECT_EQ(source.text.find("#include <"), source.text.find("#include <cmath>"));
  for (const char* line : {"// tokens=1 group=1", "using Value = DeviceBf16;",
                           "using Position = unsigned;", "constexpr int R = 4;",
                           "return 4u * i + 0u;", "return static_cast<const unsigned*>(table)[i];",
                           "__launch_bounds__(128) general_sparse_product("}) {
    EXPECT_NE(source.text.find(line), std::string::npos) << line;
  }
  EXPECT_EQ(source.text.find(kBlockRowsKernel), std::string::npos);
}

TEST(GeneralSparsePlanSource, RefusesFactsOfNoKernel) {
  const OffsetFunction line = OffsetFunction::from_text("linear count=100 a=4 b=0");
  const auto source = [&](DType dtype, PositionCode positions, const OffsetFunction& parts) {
    return plan_source(
        {}, {.dtype = dtype, .positions = positions, .part_begin = parts, .row = line}, 90);
  };
  EXPECT_TRUE(testing::throws_error([&] { source(DType::i32, PositionCode::u16, line); },
                                    "kernels for f32, f16 and bf16, not for i32"));
  EXPECT_TRUE(testing::throws_error([&] { source(DType::f32, PositionCode::bits, line); },
                                    "positions of kernels are of u16 or u32"));
  EXPECT_TRUE(testing::throws_error(
      [&] {
        source(DType::f32, PositionCode::u16, OffsetFunction::from_text("linear count=2 a=-1 b=0"));
      },
      "offsets of kernels are from 0 to 2^32 - 1"));
}

}  // namespace
}  // namespace sparsellm
