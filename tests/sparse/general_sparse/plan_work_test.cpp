// How nonzeros are divided among threads.

#include "sparse/general_sparse/plan_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "sparse/general_sparse/general_sparse.h"
#include "tests/sparse/general_sparse/plan_matrices.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace general_sparse;
using namespace sparsellm::testing;

size_t at(int64_t index) { return static_cast<size_t>(index); }

// The rows of C in the order of the encoding, and the loads of each.
struct NaiveRow {
  uint32_t row = 0;
  int64_t begin = 0;
  int64_t end = 0;
};
std::vector<NaiveRow> naive_rows(const Parts& parts, int a_vector) {
  std::vector<NaiveRow> rows;
  for (int64_t c = 0; c < parts.grid.chunks(); ++c) {
    const Chunk chunk = parts.grid.chunk(c);
    for (int64_t place = 0; place < chunk.groups; ++place) {
      const Lane lane = parts.lane(chunk, place);
      const auto first = static_cast<int64_t>(parts.numbers(lane, 0));
      const int64_t in_window =
          parts.row_order.empty() ? place : parts.row_order[at(chunk.first_place + place)];
      rows.push_back({.row = static_cast<uint32_t>(chunk.first_group + in_window),
                      .begin = first / a_vector,
                      .end = (first + lane.entries) / a_vector});
    }
  }
  return rows;
}

// Which group of threads has each load, as plan.h and plan_work.h say it: the number of the group,
// counted through all blocks. Fails for loads that several have, or none.
std::vector<int64_t> groups_of_loads(const KernelPlan& plan, const PlanWork& work) {
  std::vector<int64_t> groups(at(work.loads), -1);
  const int64_t sharers = part_groups(plan);
  const auto take = [&](int64_t load, int64_t group) {
    EXPECT_EQ(groups[at(load)], -1) << "load " << load << " is taken twice";
    groups[at(load)] = group;
  };
  for (int64_t part = 0; part < work.parts; ++part) {
    const int64_t begin = work.part_begins[at(part)];
    const int64_t end = std::min<int64_t>(work.part_begins[at(part) + 1], work.loads);
    EXPECT_LE(begin, end);
    const int64_t step = plan.step_nonzeros / plan.a_vector;
    const int64_t share = work.group_loads > 0 ? work.group_loads : ceil_div(end - begin, sharers);
    for (int64_t load = begin; load < end; ++load) {
      const bool turns = plan.thread.rows == RowCount::one;
      const int64_t sharer =
          turns ? (load - begin) / step % sharers : (load - begin) / std::max<int64_t>(share, 1);
      EXPECT_LT(sharer, sharers) << "part " << part << " has more than its groups take";
      take(load, part * sharers + sharer);
    }
  }
  EXPECT_EQ(std::count(groups.begin(), groups.end(), -1), 0) << "loads that nobody has";
  return groups;
}

// The number of the row that starts last at this item or before.
int64_t row_at(const PlanWork& work, int64_t item) {
  const RowStarts& starts = work.starts[at(item / 32)];
  const unsigned upto = 0xffffffffu >> (31 - item % 32);
  return int64_t{starts.before} + std::popcount(starts.bits & upto) - 1;
}
bool starts_at(const PlanWork& work, int64_t item) {
  return (work.starts[at(item / 32)].bits >> item % 32 & 1u) != 0;
}

void check_starts(const KernelPlan& plan, const PlanWork& work, int64_t row, const NaiveRow& naive,
                  const std::vector<int64_t>& groups) {
  if (part_is_row(plan)) {
    EXPECT_EQ(work.part_begins[at(row)], naive.begin);
    return;
  }
  for (int64_t load = naive.begin; load < naive.end; ++load) {
    const int64_t item =
        plan.thread.rows == RowCount::several ? load : groups[at(load)] / part_groups(plan);
    EXPECT_EQ(row_at(work, item), row);
    if (load == naive.begin || plan.thread.rows == RowCount::several) {
      EXPECT_EQ(starts_at(work, item), load == naive.begin);
    }
  }
}

void check(const Parts& parts, const KernelPlan& plan) {
  const PlanWork work = plan_work(parts, plan);
  const std::vector<NaiveRow> rows = naive_rows(parts, plan.a_vector);
  const std::vector<int64_t> groups = groups_of_loads(plan, work);
  ASSERT_EQ(std::ssize(work.part_begins), work.parts + 1);
  ASSERT_EQ(work.part_blocks, ceil_div(work.parts, block_parts(plan)));
  ASSERT_GE(work.part_begins.back(), work.loads);

  const int64_t of_warp = general_sparse::groups(plan);
  const int64_t of_block = of_warp * sparse_warps(plan);
  std::vector<uint32_t> empty;
  std::vector<BlockRow> block_rows;
  std::set<int64_t> rows_with_several;  // groups
  int64_t number = 0;
  int64_t last_group = -1;
  for (const NaiveRow& row : rows) {
    if (row.begin == row.end) {
      empty.push_back(row.row);
      continue;
    }
    ASSERT_EQ(work.rows[at(number)], row.row);
    check_starts(plan, work, number, row, groups);
    const auto begin = groups.begin() + row.begin;
    const auto end = groups.begin() + row.end;
    const auto [first, second] = std::minmax_element(begin, end);
    const int64_t least = *first;
    const int64_t most = *second;
    if (plan.thread.ends == RowEnds::whole) {
      EXPECT_EQ(least, most);
    }
    if (plan.warp.ends == RowEnds::whole) {
      EXPECT_EQ(least / of_warp, most / of_warp);
    }
    if (plan.block.ends == RowEnds::whole) {
      EXPECT_EQ(least / of_block, most / of_block);
    } else if (least / of_block != most / of_block) {
      block_rows.push_back(
          {.row = row.row,
           .first_block = static_cast<unsigned>(least / of_block),
           .blocks = static_cast<unsigned>(most / of_block - least / of_block + 1)});
    }
    // A group, a warp, a block of one row has no other.
    const auto is_new = [&](const Division& division, int64_t size) {
      return division.rows == RowCount::several || last_group < 0 ||
             last_group / size != least / size;
    };
    EXPECT_TRUE(is_new(plan.thread, 1) && is_new(plan.warp, of_warp) &&
                is_new(plan.block, of_block))
        << "row " << number << " begins in what has another";
    last_group = most;
    ++number;
  }
  EXPECT_EQ(number, std::ssize(work.rows));
  EXPECT_EQ(work.empty_rows, empty);
  ASSERT_EQ(work.block_rows.size(), block_rows.size());
  for (size_t i = 0; i < block_rows.size(); ++i) {
    EXPECT_EQ(work.block_rows[i].row, block_rows[i].row);
    EXPECT_EQ(work.block_rows[i].first_block, block_rows[i].first_block);
    EXPECT_EQ(work.block_rows[i].blocks, block_rows[i].blocks);
  }
  for (int64_t part = 0; part < work.parts && plan.thread_nonzeros > 0; ++part) {
    const int64_t most = int64_t{part_groups(plan)} * plan.thread_nonzeros / plan.a_vector;
    const int64_t end = std::min<int64_t>(work.part_begins[at(part) + 1], work.loads);
    EXPECT_TRUE(end - work.part_begins[at(part)] <= most || work.group_loads == 0);
    EXPECT_TRUE(end - work.part_begins[at(part)] <= most || plan.warp.ends == RowEnds::whole ||
                plan.block.ends == RowEnds::whole);
  }
}

// Plans that divide nonzeros differently.
std::vector<KernelPlan> different_divisions() {
  std::vector<KernelPlan> plans;
  std::set<std::tuple<std::string, int, int>> seen;
  for (const int64_t tokens : {1, 8, 32}) {
    for (const KernelPlan& plan : enumerate_plans({.tokens = tokens,
                                  .threads = {32, 128, 512},
                                  .thread_nonzeros = {0, 1, 4, 16},
                                  .steps = {1, 4}})) {
      KernelPlan divisions = plan;
      divisions.tokens_per_thread = 1;
      divisions.threads_per_group = 1;
      divisions.warps_per_group = 1;
      divisions.threads = 32;
      divisions.x_vector = 1;
      divisions.x_order = XOrder::by_token;
      if (seen.insert({to_text(divisions), groups(plan), sparse_warps(plan)}).second) {
        plans.push_back(plan);
      }
    }
  }
  return plans;
}

TEST(GeneralSparsePlanWork, EachLoadIsTakenOnceByTheRightThread) {
  ThreadPool threads(2);
  Random random(95);
  const std::vector<KernelPlan> plans = different_divisions();
  EXPECT_GT(plans.size(), 300u);
  for (const PlanMatrixCase& matrix : plan_matrices()) {
    for (const int shared_rows : {1, 4}) {
      for (const int vector : {1, 2, 4, 8}) {
        KernelPlan of_layout;
        of_layout.a_vector = vector;
        const EncodedWeight e = encode(
            matrix.m, plan_layout(of_layout, shared_rows, random.below(2) == 0, shared_rows == 1),
            threads);
        const Parts parts(e);
        for (const KernelPlan& plan : plans) {
          // Vectors divide those of the layout; some plans for each of them.
          if (vector % plan.a_vector == 0 && random.below(8) == 0) {
            SCOPED_TRACE(::testing::Message() << matrix.name << ", units of " << vector << ", "
                                              << shared_rows << " rows, " << to_text(plan));
            check(parts, plan);
            ASSERT_FALSE(::testing::Test::HasFailure());
          }
        }
      }
    }
  }
}

KernelPlan equal_shares() {
  constexpr Division kSplitRows{RowCount::several, RowEnds::split};
  return {.block = kSplitRows,
          .warp = kSplitRows,
          .thread = kSplitRows,
          .thread_nonzeros = 4,
          .thread_reduction = Reduction::bitmap,
          .warp_reduction = Reduction::segment,
          .block_reduction = Reduction::segment,
          .threads = 64};
}

TEST(GeneralSparsePlanWork, OffsetsAreFunctionsWhereTheyCanBe) {
  ThreadPool threads(2);
  const auto facts_of = [&](const CompressedRows& m, const KernelPlan& plan) {
    const EncodedWeight e = encode(m, plan_layout(plan, 1, false, false), threads);
    const Parts parts(e);
    return plan_facts(parts.layout, parts.values.dtype, plan_work(parts, plan));
  };
  // Whatever the matrix is, equal shares are.
  for (const PlanMatrixCase& matrix : plan_matrices()) {
    EXPECT_EQ(facts_of(matrix.m, equal_shares()).part_begin.bytes(), 0) << matrix.name;
  }
  // Rows of one length, in order.
  const CompressedRows even = matrix_of_lengths(std::vector<int64_t>(500, 12), 40, 1);
  const PlanFacts facts = facts_of(even, {});
  EXPECT_EQ(facts.part_begin.to_text(), "linear count=501 a=12 b=0");
  EXPECT_EQ(facts.row.to_text(), "linear count=500 a=1 b=0");
  const CompressedRows uneven = matrix_of_lengths({3, 1, 4, 1, 5, 9, 2, 6}, 40, 1);
  EXPECT_EQ(facts_of(uneven, {}).part_begin.to_text(),
            "quasi-linear-u8 count=9 a=4 b=-7 residuals=7,6,3,3,0,1,6,4,6");
}

TEST(GeneralSparsePlanWork, RefusesWhatNoKernelTakes) {
  ThreadPool threads(1);
  const CompressedRows m = matrix_of_lengths({3, 1, 4}, 200, 1);
  const auto work_of = [&](const general_sparse::Layout& layout, const KernelPlan& plan) {
    const EncodedWeight e = encode(m, layout, threads);
    plan_work(Parts(e), plan);
  };
  const general_sparse::Layout good = plan_layout({}, 1, false, false);
  KernelPlan pairs;
  pairs.step_nonzeros = 2;
  pairs.a_vector = 2;
  EXPECT_TRUE(throws_error([&] { work_of(good, pairs); },
                           "a-vector=2 does not divide the 1 entries of a unit"));
  pairs.step_nonzeros = 1;
  EXPECT_TRUE(throws_error([&] { work_of(good, pairs); }, "a-vector=2 does not divide step=1"));
  general_sparse::Layout panels = good;
  panels.panel_columns = 64;
  EXPECT_TRUE(throws_error([&] { work_of(panels, {}); }, "plans take groups apart, in one panel"));
  general_sparse::Layout differences = good;
  differences.positions = PositionCode::u8;
  EXPECT_TRUE(
      throws_error([&] { work_of(differences, {}); }, "plans take groups apart, in one panel"));
}

}  // namespace
}  // namespace sparsellm
