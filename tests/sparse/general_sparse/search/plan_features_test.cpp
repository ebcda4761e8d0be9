// What the cost model knows of a plan, against loops over what each thread of its kernel does.

#include "sparse/general_sparse/search/plan_features.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sparse/general_sparse/general_sparse.h"
#include "sparse/general_sparse/layout_rule.h"
#include "sparse/general_sparse/search/plan_space.h"
#include "tests/sparse/general_sparse/plan_matrices.h"

namespace sparsellm {
namespace {

using namespace general_sparse;
using namespace sparsellm::testing;

size_t at(int64_t index) { return static_cast<size_t>(index); }

double value(const PlanFeatures& features, PlanFeature feature) {
  return features[static_cast<size_t>(feature)];
}

// Of the thread blocks of one tile of tokens.
struct NaiveSteps {
  double blocks = 0.0;
  double of_warps = 0.0;
  double waited = 0.0;  // of_warps, if all warps that share a part take as long as its slowest
  double of_blocks = 0.0;
  double longest = 0.0;
  double split_rows = 0.0;
  double longest_split = 0.0;
};

// A thread's loop over its nonzeros, as in device/plan_product.cuh.
int64_t steps_of_thread(const PlanWork& work, const KernelPlan& plan, int64_t part, int64_t share) {
  if (part >= work.parts) {
    return 0;
  }
  const int64_t step = plan.step_nonzeros / plan.a_vector;
  const int64_t sharers = part_groups(plan);
  const int64_t begin = work.part_begins[at(part)];
  int64_t end = std::min<int64_t>(work.part_begins[at(part + 1)], work.loads);
  int64_t first = begin + share * step;
  int64_t stride = sharers * step;
  if (plan.thread.rows == RowCount::several) {
    const int64_t loads =
        work.group_loads > 0 ? work.group_loads : (end - begin + sharers - 1) / sharers;
    first = begin + share * loads;
    end = std::min(first + loads, end);
    stride = step;
  }
  int64_t steps = 0;
  for (int64_t load = first; load < end; load += stride) {
    ++steps;
  }
  return steps;
}

void add_naive_steps(const EncodedRows& rows, const KernelPlan& plan, NaiveSteps& sum) {
  const PlanWork work = plan_work(rows, plan);
  const int64_t of_part = part_groups(plan);
  for (int64_t block = 0; block < work.part_blocks; ++block) {
    int64_t of_warps = 0;
    int64_t slowest = 0;
    for (int64_t warp = 0; warp < sparse_warps(plan); ++warp) {
      int64_t of_warp = 0;
      for (int64_t group = 0; group < groups(plan); ++group) {
        const int64_t in_block = warp * groups(plan) + group;
        const int64_t part = block * block_parts(plan) + in_block / of_part;
        of_warp = std::max(of_warp, steps_of_thread(work, plan, part, in_block % of_part));
      }
      of_warps += of_warp;
      slowest = std::max(slowest, of_warp);
    }
    const bool shared = part_level(plan) == PartLevel::block;
    sum.of_warps += static_cast<double>(of_warps);
    sum.waited += static_cast<double>(shared ? slowest * sparse_warps(plan) : of_warps);
    sum.of_blocks += static_cast<double>(slowest);
    sum.longest = std::max(sum.longest, static_cast<double>(slowest));
  }
  sum.blocks += static_cast<double>(work.part_blocks);
  sum.split_rows += static_cast<double>(work.block_rows.size());
  for (const BlockRow& row : work.block_rows) {
    sum.longest_split = std::max(sum.longest_split, static_cast<double>(row.blocks));
  }
}

class PlanFeaturesTest : public ::testing::Test {
 protected:
  // The plans of the space that divide nonzeros differently.
  static std::vector<KernelPlan> divisions(const MatrixSample& sample, int64_t n, Order order) {
    std::vector<KernelPlan> plans;
    std::set<std::tuple<int, int, int, int, int, int, int, int, int>> seen;
    const auto number = [](const Division& division) {
      return static_cast<int>(division.rows) * 2 + static_cast<int>(division.ends);
    };
    for (const KernelPlan& plan :
         searched_plans({.dtype = sample.dtype, .layout = sample.layout, .n = n, .order = order})) {
      if (seen.insert({number(plan.block), number(plan.warp), number(plan.thread),
                       plan.thread_nonzeros, plan.step_nonzeros, plan.threads_per_group,
                       plan.warps_per_group, plan.threads, static_cast<int>(plan.x_order)})
              .second) {
        plans.push_back(plan);
      }
    }
    return plans;
  }

  ThreadPool threads_{2};
};

TEST_F(PlanFeaturesTest, StepsAreThoseOfTheThreads) {
  int whole_matrices = 0;
  for (const PlanMatrixCase& matrix : plan_matrices()) {
    const MatrixSample sample = sample_of(matrix.m, threads_);
    const EncodedWeight e =
        encode(matrix.m, choose_row_layout(matrix.m, row_statistics(matrix.m, threads_)), threads_);
    const Parts parts(e);
    const bool whole = sample.longest.starts.size() == 1;
    whole_matrices += whole ? 1 : 0;
    PlanCounts counts(sample);
    std::set<std::tuple<PartLevel, RowCount, RowEnds>> levels;
    for (const int64_t n :
         matrix.name == "uneven" ? std::vector<int64_t>{1, 8, 40} : std::vector<int64_t>{8}) {
      for (const KernelPlan& plan : divisions(sample, n, Order::columns)) {
        SCOPED_TRACE(matrix.name + ": " + to_text(plan));
        levels.insert({part_level(plan), plan.thread.rows, plan.thread.ends});
        NaiveSteps steps;
        if (whole) {
          add_naive_steps(parts, plan, steps);
        } else {
          add_naive_steps(sample.view(sample.usual), plan, steps);
          add_naive_steps(sample.view(sample.longest), plan, steps);
        }
        const PlanFeatures features = counts.features(plan, n, Order::columns);
        const auto tiles = static_cast<double>(ceil_div(n, tile_tokens(plan)));
        const double block_warps = plan.threads / 32;
        const double tile_warps = plan.warps_per_group * tiles;
        ASSERT_NEAR(value(features, PlanFeature::steps) * 1e6, steps.waited * tile_warps, 1e-6);
        ASSERT_LE(steps.of_warps, steps.waited);
        ASSERT_NEAR(value(features, PlanFeature::products) * 1e6,
                    steps.waited * tile_warps * plan.step_nonzeros * sample.layout.shared_rows *
                        plan.tokens_per_thread,
                    1e-6);
        ASSERT_NEAR(value(features, PlanFeature::resident_steps) * 1e6,
                    steps.of_blocks * block_warps * tiles, 1e-6);
        ASSERT_EQ(value(features, PlanFeature::longest), steps.longest);
        // The slowest warp is one of these.
        for (const auto& [of_slowest, of_all] :
             {std::pair(PlanFeature::longest_products, PlanFeature::products),
              std::pair(PlanFeature::longest_gathers, PlanFeature::gathers)}) {
          ASSERT_NEAR(value(features, of_slowest) * value(features, PlanFeature::steps),
                      steps.longest * value(features, of_all), 1e-9 * value(features, of_slowest));
        }
        ASSERT_NEAR(value(features, PlanFeature::warps) * 1e6, steps.blocks * block_warps * tiles,
                    1e-6);
        const double split = steps.split_rows * sample.layout.shared_rows * tile_tokens(plan);
        ASSERT_NEAR(value(features, PlanFeature::split_rows),
                    steps.split_rows > 0.0 ? 1e-3 + split * tiles / 1e6 : 0.0, 1e-12);
        ASSERT_EQ(value(features, PlanFeature::longest_split), steps.longest_split);
      }
    }
    // Whole rows of one and of several; split ones of groups, warps and blocks.
    EXPECT_GE(levels.size(), 6u);
  }
  EXPECT_GE(whole_matrices, 4);
}

// A row for each thread: whoever has the longest makes its warp wait.
TEST_F(PlanFeaturesTest, OfAPlanByHand) {
  std::vector<int64_t> lengths(66, 2);
  lengths[5] = 0;   // of no thread
  lengths[40] = 7;  // of the second warp
  lengths[65] = 0;
  const CompressedRows m = matrix_of_lengths(lengths, 50, 1);
  const Layout layout{.panel_columns = 65536, .window_rows = 256};
  const EncodedWeight e = encode(m, layout, threads_);
  const MatrixSample sample =
      sample_of(Parts(e), DType::f32, m.columns(), e.part(kPositions).bytes);
  PlanCounts counts(sample);
  const KernelPlan plan{.step_nonzeros = 2, .x_order = XOrder::transposed, .threads = 64};
  const PlanFeatures features = counts.features(plan, 3, Order::rows);
  const auto expect = [&](PlanFeature feature, double expected) {
    EXPECT_NEAR(value(features, feature), expected, 1e-9) << general_sparse::name_of(feature);
  };
  const double entries = 63 * 2 + 7;
  const double tiles = 3.0;  // of one token
  expect(PlanFeature::launch, 1.0);
  expect(PlanFeature::a_bytes, entries * (2 + 4) / 1e6);
  expect(PlanFeature::a_reread_bytes, entries * (2 + 4) * (tiles - 1) / 1e6);
  expect(PlanFeature::b_bytes, 50 * 3 * 4 / 1e6);
  expect(PlanFeature::c_bytes, 66 * 32 / 1e6);  // rows of 12 bytes, in sectors
  expect(PlanFeature::zeros, 2 * 3 / 1e6);
  expect(PlanFeature::transposed_bytes, 0.0);
  expect(PlanFeature::steps, (1 + 4) * tiles / 1e6);
  expect(PlanFeature::products, (1 + 4) * 2 * tiles / 1e6);
  expect(PlanFeature::gathers, (1 + 4) * 2 * tiles / 1e6);
  expect(PlanFeature::wavefronts, (1 + 4) * 2 * 32 * tiles / 1e6);
  expect(PlanFeature::resident_steps, 4 * 2 * tiles / 1e6);
  expect(PlanFeature::longest, 4.0);
  expect(PlanFeature::longest_products, 4.0 * 2);
  expect(PlanFeature::longest_gathers, 4.0 * 2);
  expect(PlanFeature::warps, 2 * tiles / 1e6);
  expect(PlanFeature::thread_bitmaps, 0.0);
  expect(PlanFeature::warp_totals, 0.0);
  expect(PlanFeature::block_segments, 0.0);
  expect(PlanFeature::split_rows, 0.0);
  // By columns B is transposed before, and C is written column by column.
  const PlanFeatures by_columns = counts.features(plan, 3, Order::columns);
  EXPECT_NEAR(value(by_columns, PlanFeature::transposed_bytes), 2 * 50 * 3 * 4 / 1e6, 1e-9);
  EXPECT_NEAR(value(by_columns, PlanFeature::c_bytes), 66 * 12 / 1e6, 1e-9);
}

TEST_F(PlanFeaturesTest, AreNumbersOfAllPlansAndMatrices) {
  struct Case {
    DType dtype;
    int64_t n;
    Order order;
  };
  for (const PlanMatrixCase& matrix : plan_matrices()) {
    for (const auto& [dtype, n, order] :
         {Case{DType::f32, 1, Order::columns}, Case{DType::f32, 64, Order::rows},
          Case{DType::f16, 7, Order::columns}}) {
      const MatrixSample sample =
          sample_of(with_dtype(copy_of(matrix.m), dtype, threads_), threads_);
      PlanCounts counts(sample);
      for (const KernelPlan& plan :
           searched_plans({.dtype = dtype, .layout = sample.layout, .n = n, .order = order})) {
        const PlanFeatures features = counts.features(plan, n, order);
        for (size_t i = 0; i < kPlanFeatures; ++i) {
          ASSERT_TRUE(std::isfinite(features[i]) && features[i] >= 0.0)
              << matrix.name << ", " << general_sparse::name_of(static_cast<PlanFeature>(i))
              << " is " << features[i] << ": " << to_text(plan);
        }
      }
    }
  }
}

}  // namespace
}  // namespace sparsellm
