// The plans of a search in the order of what a model says they take.

#include "sparse/general_sparse/search/plan_search.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>
#include <vector>

#include "kernels/base/parallel.h"
#include "tests/sparse/general_sparse/plan_matrices.h"

namespace sparsellm {
namespace {

using namespace general_sparse;
using namespace sparsellm::testing;

TEST(PlanSearch, AllPlansTheFastestFirst) {
  ThreadPool threads(2);
  for (const PlanMatrixCase& matrix : plan_matrices()) {
    SCOPED_TRACE(matrix.name);
    const MatrixSample sample = sample_of(matrix.m, threads);
    PlanCounts counts(sample);
    const SearchedProduct product{
        .dtype = DType::f32, .layout = sample.layout, .n = 8, .order = Order::columns};
    const CostModel& model = CostModel::built_in();
    const std::vector<RankedPlan> plans = ranked(product, counts, model);
    double last = 0.0;
    std::multiset<std::string> found;
    for (const RankedPlan& one : plans) {
      ASSERT_GT(one.seconds, 0.0);
      ASSERT_GE(one.seconds, last);
      last = one.seconds;
      ASSERT_EQ(one.features, counts.features(one.plan, product.n, product.order));
      ASSERT_EQ(one.seconds, model.seconds(access_class(one.plan), one.features));
      found.insert(to_text(one.plan));
    }
    std::multiset<std::string> expected;
    for (const KernelPlan& plan : searched_plans(product)) {
      expected.insert(to_text(plan));
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(PlanSearch, EqualOnesAreInTheOrderOfTheSpace) {
  ThreadPool threads(1);
  const CompressedRows m = matrix_of_lengths(std::vector<int64_t>(40, 9), 60, 1);
  const MatrixSample sample = sample_of(m, threads);
  PlanCounts counts(sample);
  const SearchedProduct product{.dtype = DType::f32, .layout = sample.layout, .n = 3};
  std::vector<KernelPlan> found;
  for (const RankedPlan& one : ranked(product, counts, CostModel::fit({}, "a GPU"))) {
    EXPECT_EQ(one.seconds, std::numeric_limits<double>::infinity());
    found.push_back(one.plan);
  }
  EXPECT_EQ(found, searched_plans(product));
}

}  // namespace
}  // namespace sparsellm
