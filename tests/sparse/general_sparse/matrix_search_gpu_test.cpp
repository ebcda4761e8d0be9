// Products of sparse matrices on a GPU by kernels that a search has found.

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/kernel_cache.h"
#include "kernels/base/run_time_compiler.h"
#include "kernels/base/tune_cache.h"
#include "sparse/general_sparse/search/plan_search.h"
#include "sparse/matrices/random_matrix.h"
#include "tests/sparse/general_sparse/matrix_products.h"
#include "tests/testing/gpu_context.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using general_sparse::Matrix;
using general_sparse::MatrixTuning;
using general_sparse::Order;
using general_sparse::PlanTrial;
using general_sparse::RankedPlan;

constexpr std::array<int64_t, 3> kColumns{1, 8, 33};
constexpr int64_t kPlans = 2;

class GpuMatrixSearch : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) {
      return;
    }
    if (const std::string problem = compiler_.why_not(); !problem.empty()) {
      GTEST_SKIP() << problem;
    }
    workspace_ = std::make_unique<Workspace>(kGpu, int64_t{64} << 20);
    exec_.emplace(ExecContext{
        .device = kGpu, .workspace = *workspace_, .threads = cpu.threads, .cuda = &gpu->cuda});
  }

  CompressedRows matrix_of(MatrixClass matrix_class) {
    return with_dtype(random_matrix({.matrix_class = matrix_class,
                                     .rows = 2500,
                                     .columns = 2500,
                                     .nonzeros = 20000,
                                     .seed = 6},
                                    cpu.threads),
                      GetParam(), cpu.threads);
  }
  std::unique_ptr<Matrix> load(const CompressedRows& m) {
    return general_sparse::load_matrix(m, kGpu, cpu.threads);
  }

  MatrixTuning tuning() {
    return {.columns = {kColumns.begin(), kColumns.end()},
            .orders = {Order::rows, Order::columns},
            .kernels = &kernels_,
            .most_plans = kPlans,
            .on_trial = [this](const PlanTrial& trial) { trials_.push_back(trial.plan); }};
  }

  // Of one product.
  MatrixTuning tuning_of(int64_t n, Order order) {
    MatrixTuning what = tuning();
    what.columns = {n};
    what.orders = {order};
    return what;
  }

  RunTimeCompiler compiler_;
  KernelCache kernels_{compiler_, {}};
  std::unique_ptr<Workspace> workspace_;
  std::optional<ExecContext> exec_;
  std::vector<std::string> trials_;
};

TEST_P(GpuMatrixSearch, FindsProductsThatAreRight) {
  for (const MatrixClass matrix_class :
       {MatrixClass::power_law, MatrixClass::blocks, MatrixClass::empty_rows}) {
    SCOPED_TRACE(name_of(matrix_class));
    const CompressedRows m = matrix_of(matrix_class);
    const std::unique_ptr<Matrix> matrix = load(m);
    TuneCache cache;
    trials_.clear();
    matrix->tune(tuning(), cache, *exec_);
    const auto generated = std::ranges::count_if(
        trials_, [](const std::string& plan) { return plan.starts_with("plan "); });
    EXPECT_GT(generated, 0);  // those that are far slower than the best are not timed
    EXPECT_LE(generated, kPlans * 2 * std::ssize(kColumns));
    check_products(*matrix, m, kColumns, *exec_);
    check_products(*matrix->copy(), m, kColumns, *exec_);
    ASSERT_FALSE(HasFailure());

    // The same is found in the cache.
    trials_.clear();
    const std::unique_ptr<Matrix> other = load(m);
    other->tune(tuning(), cache, *exec_);
    EXPECT_TRUE(trials_.empty());
    for (const int64_t n : kColumns) {
      for (const Order order : {Order::rows, Order::columns}) {
        EXPECT_EQ(other->plan_text(n, order), matrix->plan_text(n, order));
        EXPECT_EQ(other->workspace_bytes(n, order), matrix->workspace_bytes(n, order));
      }
    }
  }
}

// Whichever of them is the fastest.
TEST_P(GpuMatrixSearch, MultipliesByGeneratedKernels) {
  const CompressedRows m = matrix_of(MatrixClass::skewed);
  for (const Order order : {Order::rows, Order::columns}) {
    for (const int64_t n : {1, 32}) {
      for (size_t place = 0; place < 200; place += 90) {
        std::string wanted;
        MatrixTuning what = tuning_of(n, order);
        what.choose = [&](const std::vector<RankedPlan>& plans) {
          const RankedPlan& plan = plans[place % plans.size()];
          wanted = "plan " + to_text(plan.plan);
          return std::vector{plan};
        };
        TuneCache measured;
        const std::unique_ptr<Matrix> matrix = load(m);
        matrix->tune(what, measured, *exec_);
        std::string text = measured.text();
        const std::string found = matrix->plan_text(n, order);
        const size_t at = text.find(found);
        ASSERT_NE(at, std::string::npos) << text;
        text.replace(at, found.size(), wanted);
        TuneCache cache;
        cache.add(text);
        const std::unique_ptr<Matrix> by_generated = load(m);
        by_generated->tune(what, cache, *exec_);
        ASSERT_EQ(by_generated->plan_text(n, order), wanted);
        check_products(*by_generated, m, std::array<int64_t, 1>{n}, *exec_);
        check_products(*by_generated->copy(), m, std::array<int64_t, 1>{n}, *exec_);
        ASSERT_FALSE(HasFailure()) << wanted;
      }
    }
  }
}

TEST_P(GpuMatrixSearch, MeasuresAnewWhatTheCacheHasNot) {
  const CompressedRows m = matrix_of(MatrixClass::uniform);
  const MatrixTuning what = tuning_of(8, Order::rows);
  TuneCache cache;
  load(m)->tune(what, cache, *exec_);
  std::string text = cache.text();
  const size_t at = text.find("reductions=");
  const size_t rows = text.find("groups ");
  ASSERT_TRUE(at != std::string::npos || rows != std::string::npos) << text;
  text.replace(at != std::string::npos ? at : rows, 6, "nonsense");
  TuneCache damaged;
  damaged.add(text);
  trials_.clear();
  const std::unique_ptr<Matrix> matrix = load(m);
  matrix->tune(what, damaged, *exec_);
  EXPECT_FALSE(trials_.empty());
  check_products(*matrix, m, std::array<int64_t, 2>{8, 5}, *exec_);
  // Another matrix of the same shape is not taken for this one.
  trials_.clear();
  const CompressedRows other = matrix_of(MatrixClass::banded);
  load(other)->tune(what, cache, *exec_);
  EXPECT_FALSE(trials_.empty());
}

// One that takes B by tokens, which would be wrong for B by rows.
TEST_P(GpuMatrixSearch, RefusesPlansOfOtherProducts) {
  const CompressedRows m = matrix_of(MatrixClass::uniform);
  const MatrixTuning what = tuning_of(8, Order::rows);
  TuneCache measured;
  const std::unique_ptr<Matrix> matrix = load(m);
  matrix->tune(what, measured, *exec_);
  std::string text = measured.text();
  const std::string found = matrix->plan_text(8, Order::rows);
  const size_t at = text.find(found);
  ASSERT_NE(at, std::string::npos) << text;
  text.replace(at, found.size(),
               "plan tokens=1 group=8 token-warps=1 block=several,whole warp=several,whole "
               "thread=one,whole thread-nonzeros=0 step=1 a-vector=1 x-vector=1 x-order=by-token "
               "reductions=total,none,none threads=128");
  TuneCache cache;
  cache.add(text);
  trials_.clear();
  matrix->tune(what, cache, *exec_);
  EXPECT_FALSE(trials_.empty());
  check_products(*matrix, m, std::array<int64_t, 1>{8}, *exec_);
}

TEST_P(GpuMatrixSearch, TakesThePrograms) {
  const CompressedRows m = matrix_of(MatrixClass::stencil);
  MatrixTuning what = tuning();
  what.kernels = nullptr;
  TuneCache cache;
  const std::unique_ptr<Matrix> matrix = load(m);
  matrix->tune(what, cache, *exec_);
  for (const std::string& plan : trials_) {
    EXPECT_TRUE(plan.starts_with("rows ")) << plan;
  }
  check_products(*matrix, m, kColumns, *exec_);
}

TEST_P(GpuMatrixSearch, OfNothing) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>(0, 5), {5, 0}, {5, 5}}) {
    CompressedRows m(GetParam(), rows, columns, 0);
    std::ranges::fill(m.starts(), 0);
    const std::unique_ptr<Matrix> matrix = load(m);
    TuneCache cache;
    matrix->tune(tuning(), cache, *exec_);
    check_products(*matrix, m, kColumns, *exec_);
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuMatrixSearch,
                         ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace sparsellm
