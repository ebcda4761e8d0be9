// The plans that a search chooses from.

#include "sparse/general_sparse/search/plan_space.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace sparsellm {
namespace {

using namespace general_sparse;

struct SpaceCase {
  DType dtype;
  int64_t n;
  Order order;
  int vector;
};

std::vector<SpaceCase> space_cases() {
  std::vector<SpaceCase> cases;
  for (const DType dtype : {DType::f32, DType::f16}) {
    for (const int64_t n : {1, 2, 7, 8, 33, 64}) {
      for (const Order order : {Order::rows, Order::columns}) {
        for (const int vector : {1, 4}) {
          cases.push_back({dtype, n, order, vector});
        }
      }
    }
  }
  return cases;
}

SearchedProduct product_of(const SpaceCase& of) {
  return {.dtype = of.dtype,
          .layout = {.panel_columns = 65536, .vector = of.vector},
          .n = of.n,
          .order = of.order};
}

TEST(PlanSpace, PlansAreValidAndForTheProduct) {
  for (const SpaceCase& of : space_cases()) {
    SCOPED_TRACE(::testing::Message()
                 << sparsellm::name_of(of.dtype) << ", N = " << of.n << ", "
                 << (of.order == Order::rows ? "rows" : "columns") << ", units of " << of.vector);
    const std::vector<KernelPlan> plans = searched_plans(product_of(of));
    EXPECT_GT(plans.size(), 100u);
    EXPECT_LE(plans.size(), 4000u);
    std::set<std::string> texts;
    bool with_vectors = false;
    std::set<std::pair<RowCount, RowEnds>> divisions;  // of threads
    for (const KernelPlan& plan : plans) {
      const std::string text = to_text(plan);
      ASSERT_EQ(why_invalid(plan), std::nullopt) << text;
      ASSERT_TRUE(texts.insert(text).second) << "twice: " << text;
      ASSERT_EQ(of.vector % plan.a_vector, 0);
      ASSERT_LE(plan.x_vector * size_of(of.dtype), 16);
      ASSERT_LE(plan.a_vector * size_of(of.dtype), 16);
      // The smallest tile that has all columns, or 32 of them.
      ASSERT_GE(tile_tokens(plan), std::min<int64_t>(of.n, 32));
      ASSERT_LE(tile_tokens(plan), 32);
      // B by rows has its tokens side by side.
      if (of.order == Order::rows) {
        ASSERT_EQ(plan.x_order, XOrder::transposed);
      } else if (of.n == 1) {
        ASSERT_EQ(plan.x_order, XOrder::by_token);
      }
      with_vectors = with_vectors || plan.a_vector == of.vector;
      divisions.insert({plan.thread.rows, plan.thread.ends});
    }
    EXPECT_TRUE(with_vectors);
    EXPECT_EQ(divisions.size(), 4u);
    EXPECT_EQ(plans, searched_plans(product_of(of))) << "always in the same order";
  }
}

// By columns B may be gathered as it is, or be transposed before.
TEST(PlanSpace, ColumnsCanBeTransposed) {
  std::set<XOrder> orders;
  for (const KernelPlan& plan : searched_plans(product_of({DType::f32, 8, Order::columns, 1}))) {
    orders.insert(plan.x_order);
  }
  EXPECT_EQ(orders.size(), 2u);
}

}  // namespace
}  // namespace sparsellm
