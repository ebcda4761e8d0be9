#include "sparse/general_sparse/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "tests/testing/random.h"

namespace sparsellm {
namespace {

using namespace general_sparse;
using testing::Random;

constexpr Division kOneWhole{RowCount::one, RowEnds::whole};
constexpr Division kOneSplit{RowCount::one, RowEnds::split};
constexpr Division kSeveralWhole{RowCount::several, RowEnds::whole};
constexpr Division kSeveralSplit{RowCount::several, RowEnds::split};

// Few values of each field, but all divisions.
PlanLimits few_plans(int64_t tokens) {
  PlanLimits limits;
  limits.tokens = tokens;
  limits.threads = {32, 256};
  limits.thread_nonzeros = {0, 1, 4};
  limits.steps = {1, 4};
  return limits;
}

// A warp a row, which the paper has as THREAD_TOTAL, WARP_TOTAL.
KernelPlan warp_per_row() {
  return {.block = kSeveralWhole,
          .warp = kOneWhole,
          .thread = kOneSplit,
          .thread_reduction = Reduction::total,
          .warp_reduction = Reduction::total,
          .block_reduction = Reduction::none,
          .threads = 256};
}

// Equal shares of the nonzeros: THREAD_BITMAP, WARP_SEGMENT, BLOCK_SEGMENT.
KernelPlan equal_shares() {
  return {.tokens_per_thread = 2,
          .threads_per_group = 4,
          .block = kSeveralSplit,
          .warp = kSeveralSplit,
          .thread = kSeveralSplit,
          .thread_nonzeros = 16,
          .step_nonzeros = 4,
          .a_vector = 2,
          .x_vector = 2,
          .x_order = XOrder::transposed,
          .thread_reduction = Reduction::bitmap,
          .warp_reduction = Reduction::segment,
          .block_reduction = Reduction::segment,
          .threads = 128};
}

TEST(GeneralSparsePlan, TextOfPlans) {
  EXPECT_EQ(to_text(warp_per_row()),
            "tokens=1 group=1 token-warps=1 block=several,whole warp=one,whole thread=one,split "
            "thread-nonzeros=0 step=1 a-vector=1 x-vector=1 x-order=by-token "
            "reductions=total,total,none threads=256");
  EXPECT_EQ(to_text(equal_shares()),
            "tokens=2 group=4 token-warps=1 block=several,split warp=several,split "
            "thread=several,split thread-nonzeros=16 step=4 a-vector=2 x-vector=2 "
            "x-order=transposed reductions=bitmap,segment,segment threads=128");
  EXPECT_EQ(plan_from(to_text(warp_per_row())), warp_per_row());
  EXPECT_EQ(plan_from(to_text(equal_shares())), equal_shares());
  EXPECT_EQ(why_invalid(warp_per_row()), std::nullopt);
  EXPECT_EQ(why_invalid(KernelPlan()), std::nullopt);
  EXPECT_EQ(tile_tokens(equal_shares()), 8);
  EXPECT_EQ(groups(equal_shares()), 8);
  EXPECT_EQ(sparse_warps(equal_shares()), 4);
}

// What a chain may be, written out: from thread to block, by the rules of the paper.
bool chain_is_known(const KernelPlan& plan) {
  using enum Reduction;
  static const std::set<std::vector<Reduction>> kChains{{total},
                                                        {bitmap},  // whole, or no level above
                                                        {none},    // one nonzero a thread, likewise
                                                        {total, total},
                                                        {total, bitmap},
                                                        {bitmap, segment},  //
                                                        {none, total},
                                                        {none, bitmap},  //
                                                        {total, total, total},
                                                        {total, total, bitmap},  //
                                                        {total, bitmap, segment},
                                                        {bitmap, segment, segment},  //
                                                        {none, total, total},
                                                        {none, total, bitmap},  //
                                                        {none, bitmap, segment}};
  std::vector<Reduction> chain{plan.thread_reduction};
  for (const Reduction reduction : {plan.warp_reduction, plan.block_reduction}) {
    if (reduction != none) {
      chain.push_back(reduction);
    }
  }
  return kChains.contains(chain);
}

TEST(GeneralSparsePlan, AllPlansAreValidAndAreTheirText) {
  size_t plans = 0;
  std::set<std::vector<Reduction>> chains;
  for (const int64_t tokens : {1, 3, 8, 32, 1000}) {
    const PlanLimits limits = few_plans(tokens);
    const std::vector<KernelPlan> all = enumerate_plans(limits);
    EXPECT_EQ(all, enumerate_plans(limits));
    std::set<std::string> texts;
    for (const KernelPlan& plan : all) {
      const std::string text = to_text(plan);
      ASSERT_EQ(why_invalid(plan), std::nullopt) << text;
      ASSERT_EQ(plan_from(text), plan) << text;
      ASSERT_TRUE(texts.insert(text).second) << text;
      ASSERT_TRUE(chain_is_known(plan)) << text;
      ASSERT_EQ(tile_tokens(plan), tokens == 1000 ? 32 : tokens == 3 ? 4 : tokens) << text;
      chains.insert({plan.thread_reduction, plan.warp_reduction, plan.block_reduction});
    }
    plans += all.size();
  }
  EXPECT_GT(plans, 1000u);
  EXPECT_GE(chains.size(), 15u);
}

TEST(GeneralSparsePlan, PlansKeepToTheLimits) {
  PlanLimits limits = few_plans(8);
  limits.value_bytes = 4;
  for (const KernelPlan& plan : enumerate_plans(limits)) {
    EXPECT_LE(plan.a_vector, 4);
    EXPECT_LE(plan.x_vector, 4);
  }
  limits.steps = {0, 3, 64};
  EXPECT_TRUE(enumerate_plans(limits).empty());
  limits.tokens = 0;
  EXPECT_THROW(enumerate_plans(limits), Error);
}

// Of all combinations of divisions and reductions with several parts at each level, those are valid
// that are enumerated.
TEST(GeneralSparsePlan, NoOtherChainIsValid) {
  constexpr Division kAll[] = {kOneWhole, kOneSplit, kSeveralWhole, kSeveralSplit};
  constexpr Reduction kReductions[] = {Reduction::none, Reduction::total, Reduction::bitmap,
                                       Reduction::segment};
  PlanLimits limits = few_plans(1);
  limits.threads = {256};
  limits.steps = {1};
  std::set<std::string> enumerated;
  for (const KernelPlan& plan : enumerate_plans(limits)) {
    enumerated.insert(to_text(plan));
  }
  size_t valid = 0;
  KernelPlan plan{.threads = 256};
  for (const Division& block : kAll) {
    for (const Division& warp : kAll) {
      for (const Division& thread : kAll) {
        for (const int nonzeros : limits.thread_nonzeros) {
          for (int reductions = 0; reductions < 64; ++reductions) {
            plan.block = block;
            plan.warp = warp;
            plan.thread = thread;
            plan.thread_nonzeros = nonzeros;
            plan.thread_reduction = kReductions[reductions % 4];
            plan.warp_reduction = kReductions[reductions / 4 % 4];
            plan.block_reduction = kReductions[reductions / 16];
            const bool is_valid = !why_invalid(plan);
            EXPECT_EQ(is_valid, enumerated.contains(to_text(plan))) << to_text(plan);
            if (is_valid) {
              EXPECT_TRUE(chain_is_known(plan)) << to_text(plan);
              ++valid;
            }
          }
        }
      }
    }
  }
  // x by token or transposed.
  EXPECT_EQ(2 * valid, enumerated.size());
}

TEST(GeneralSparsePlan, SaysWhichRuleIsBroken) {
  using Change = std::function<void(KernelPlan&)>;
  const std::vector<std::pair<Change, std::string>> of_warp_per_row{
      {[](KernelPlan& p) { p.tokens_per_thread = 3; }, "tokens=3 is no power of 2 from 1 to 8"},
      {[](KernelPlan& p) { p.tokens_per_thread = 16; }, "tokens=16 is no power of 2 from 1 to 8"},
      {[](KernelPlan& p) { p.threads_per_group = 64; }, "group=64 is no power of 2 from 1 to 32"},
      {[](KernelPlan& p) { p.warps_per_group = 0; }, "token-warps=0 is no power of 2 from 1 to 8"},
      {[](KernelPlan& p) { p.thread_nonzeros = -1; },
       "thread-nonzeros=-1 is no power of 2 from 1 to 64, nor 0"},
      {[](KernelPlan& p) { p.step_nonzeros = 0; }, "step=0 is no power of 2 from 1 to 8"},
      {[](KernelPlan& p) { p.threads = 96; }, "threads=96 is no power of 2 from 32 to 1024"},
      {[](KernelPlan& p) {
         p.threads = 64;
         p.warps_per_group = 4;
       },
       "threads=64 are fewer than the warps of token-warps=4"},
      {[](KernelPlan& p) { p.thread_nonzeros = 4; },
       "thread-nonzeros=4, but threads share one whole row"},
      {[](KernelPlan& p) { p.a_vector = 2; }, "a-vector=2 does not divide step=1"},
      {[](KernelPlan& p) { p.x_vector = 2; }, "x-vector=2 does not divide tokens=1"},
      // The chain.
      {[](KernelPlan& p) { p.thread_reduction = Reduction::none; },
       "the reduction of a thread is none; expected total: one row is added by a total"},
      {[](KernelPlan& p) { p.thread_reduction = Reduction::bitmap; },
       "the reduction of a thread is bitmap; expected total: one row is added by a total"},
      {[](KernelPlan& p) { p.warp_reduction = Reduction::none; },
       "the reduction of a warp is none; expected total: rows that are split go on, one row by a "
       "total"},
      {[](KernelPlan& p) { p.warp_reduction = Reduction::segment; },
       "the reduction of a warp is segment; expected total: rows that are split go on, one row by "
       "a total"},
      {[](KernelPlan& p) { p.block_reduction = Reduction::total; },
       "the reduction of a block is total; expected none: whole rows end the chain"},
      {[](KernelPlan& p) {
         p.threads = 32;
         p.block = kOneWhole;
         p.block_reduction = Reduction::total;
       },
       "the reduction of a block is total; expected none: there is one part"},
      {[](KernelPlan& p) { p.warp = kSeveralWhole; },
       "the reduction of a warp is total; expected bitmap: rows that are split go on, several rows "
       "by a bitmap"},
      // Divisions.
      {[](KernelPlan& p) { p.block = kOneWhole; },
       "block=one,whole, but warp=one,whole: parts of whole rows make several, whole rows"},
      {[](KernelPlan& p) { p.thread = kOneWhole; },
       "warp=one,whole, but thread=one,whole: parts of whole rows make several, whole rows"},
      {[](KernelPlan& p) { p.threads = 32; },
       "block=several,whole, but its one part has warp=one,whole"},
  };
  const std::vector<std::pair<Change, std::string>> of_equal_shares{
      {[](KernelPlan& p) { p.thread_nonzeros = 1; },
       "thread-nonzeros=1, but threads have several rows"},
      {[](KernelPlan& p) {
         p.thread = kOneSplit;
         p.thread_nonzeros = 1;
         p.step_nonzeros = 1;
         p.a_vector = 1;
       },
       "the reduction of a thread is bitmap; expected none: one nonzero skips the thread's level"},
      {[](KernelPlan& p) { p.thread_nonzeros = 2; }, "step=4 does not divide thread-nonzeros=2"},
      {[](KernelPlan& p) { p.x_order = XOrder::by_token; },
       "x-vector=2, but the tokens of a column are apart (x-order=by-token)"},
      {[](KernelPlan& p) { p.thread = kSeveralWhole; },
       "thread-nonzeros=16, but threads have whole rows"},
      {[](KernelPlan& p) { p.thread_reduction = Reduction::total; },
       "the reduction of a thread is total; expected bitmap: several rows are added by a bitmap"},
      {[](KernelPlan& p) { p.warp_reduction = Reduction::total; },
       "the reduction of a warp is total; expected segment: rows that are split go on, above a "
       "bitmap by a segment"},
      {[](KernelPlan& p) { p.block_reduction = Reduction::bitmap; },
       "the reduction of a block is bitmap; expected segment: rows that are split go on, above a "
       "segment by a segment"},
      {[](KernelPlan& p) { p.warp = kOneSplit; },
       "warp=one,split, but thread=several,split: a part has several rows"},
  };
  const auto check = [](const KernelPlan& good, const auto& cases) {
    for (const auto& [change, reason] : cases) {
      KernelPlan plan = good;
      change(plan);
      EXPECT_EQ(why_invalid(plan), reason);
      EXPECT_THROW(plan_from(to_text(plan)), Error) << to_text(plan);
    }
  };
  check(warp_per_row(), of_warp_per_row);
  check(equal_shares(), of_equal_shares);
}

TEST(GeneralSparsePlan, RefusesOtherText) {
  const std::string good = to_text(equal_shares());
  const auto message = [](const std::string& text) -> std::string {
    try {
      plan_from(text);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const auto with = [&good](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  EXPECT_EQ(message(""), "plan: expected 'tokens=', found ''");
  EXPECT_EQ(message(good + " "), "plan: nothing should follow, but ' ' does");
  EXPECT_EQ(message(good + " x"), "plan: nothing should follow, but 'x' does");
  EXPECT_EQ(message(with("tokens=2", "tokens=x")),
            "plan: tokens is 'x'; expected a whole number from 0 to 65536");
  EXPECT_EQ(message(with("tokens=2", "tokens=3")), "plan: tokens=3 is no power of 2 from 1 to 8");
  EXPECT_EQ(message(with("group=4 ", "")), "plan: expected 'group=', found 'token-warps=1'");
  EXPECT_EQ(message(with("block=several,split", "block=several")),
            "plan: block is 'several'; expected 2 words with commas between them");
  EXPECT_EQ(message(with("block=several,split", "block=several,split,x")),
            "plan: block is 'several,split,x'; expected 2 words with commas between them");
  EXPECT_EQ(message(with("block=several,split", "block=few,split")),
            "plan: block is 'few'; expected one of one, several");
  EXPECT_EQ(message(with("x-order=transposed", "x-order=l1")),
            "plan: x-order is 'l1'; expected one of by-token, transposed");
  EXPECT_EQ(message(with("bitmap,segment,", "bitmap,none,")),
            "plan: the reduction of a warp is none; expected segment: rows that are split go on, "
            "above a bitmap by a segment");
  EXPECT_EQ(message(with("threads=128", "threads=128\n")),
            "plan: threads is '128?'; expected a whole number from 0 to 65536");
}

// Any change of a byte is an error, or the text of what was read.
TEST(GeneralSparsePlan, ReadsNothingElseThanItWrites) {
  constexpr uint64_t kSeed = 45;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  const std::vector<KernelPlan> plans = enumerate_plans(few_plans(4));
  for (int round = 0; round < 5000; ++round) {
    std::string text = to_text(plans[static_cast<size_t>(random.below(std::ssize(plans)))]);
    const auto place = static_cast<size_t>(random.below(std::ssize(text)));
    if (random.below(2) == 0) {
      text[place] = " ,=-0123456789\n\xff"[random.below(16)];
    } else {
      text.erase(place, 1);
    }
    try {
      EXPECT_EQ(to_text(plan_from(text)), text);
    } catch (const Error& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("plan: ")) << error.what();
    }
  }
}

}  // namespace
}  // namespace sparsellm
