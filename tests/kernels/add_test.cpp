#include "kernels/add.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

TEST(Add, AnySizeStrideAndThreadCount) {
  Random random(1);
  for (int threads : {1, 2, 5}) {
    CpuContext cpu(threads);
    for (Layout layout : {Layout::contiguous, Layout::strided}) {
      for (int64_t tokens : {0, 1, 3, 17, 130}) {
        for (int64_t features : {1, 7, 8, 31, 257}) {
          SCOPED_TRACE(fmt::format("{} threads, [{}, {}]", threads, tokens, features));
          const GuardedTensor x = random.tensor(DType::f32, {tokens, features}, layout);
          const GuardedTensor y = random.tensor(DType::f32, {tokens, features}, layout);
          const std::vector<double> a = values_of(x.view());
          std::vector<double> sums = values_of(y.view());
          for (size_t i = 0; i < sums.size(); ++i) {
            sums[i] = static_cast<float>(sums[i] + a[i]);  // exact: one rounding
          }
          add(x.view(), y.view(), cpu.exec);
          EXPECT_TRUE(all_close(y.view(), {sums, std::vector<double>(sums.size(), 0.0)}, 0.0));
          EXPECT_TRUE(y.guards_intact());
        }
      }
    }
  }
}

TEST(Add, ScaledByAFactor) {
  CpuContext cpu;
  Random random(4);
  const GuardedTensor x = random.tensor(DType::f32, {3, 19});
  const GuardedTensor y = random.tensor(DType::f32, {3, 19});
  const std::vector<double> a = values_of(x.view());
  std::vector<double> sums = values_of(y.view());
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] = static_cast<float>(sums[i] - 0.75 * a[i]);  // one rounding
  }
  add(x.view(), y.view(), cpu.exec, -0.75f);
  EXPECT_EQ(values_of(y.view()), sums);
}

TEST(Add, ATensorToItself) {
  CpuContext cpu;
  const GuardedTensor x = Random(2).tensor(DType::f32, {3, 9});
  std::vector<double> doubled = values_of(x.view());
  for (double& value : doubled) {
    value *= 2;
  }
  add(x.view(), x.view(), cpu.exec);
  EXPECT_EQ(values_of(x.view()), doubled);
}

TEST(Add, NanAndInfinityStayInTheirElement) {
  CpuContext cpu;
  Random random(3);
  const GuardedTensor x = random.tensor(DType::f32, {2, 11});
  const GuardedTensor y = random.tensor(DType::f32, {2, 11});
  x.view().row<float>(0)[10] = std::numeric_limits<float>::quiet_NaN();
  x.view().row<float>(1)[2] = std::numeric_limits<float>::infinity();
  add(x.view(), y.view(), cpu.exec);
  const std::vector<double> sums = values_of(y.view());
  for (size_t i = 0; i < sums.size(); ++i) {
    EXPECT_EQ(std::isnan(sums[i]), i == 10) << i;
    EXPECT_EQ(std::isinf(sums[i]), i == 13) << i;
  }
}

TEST(Add, RefusesMismatchedOperands) {
  CpuContext cpu;
  const GuardedTensor y(DType::f32, {3, 8});
  const auto add_to_y = [&](const Tensor& x) { add(x, y.view(), cpu.exec); };
  EXPECT_TRUE(throws_error(
      [&] {
        add_to_y(GuardedTensor(DType::f32, {3, 9}).view());
      },
      "add: x is f32 [3, 9] on cpu; expected f32 [3, 8] on cpu"));
  EXPECT_TRUE(throws_error([&] { add_to_y(GuardedTensor(DType::f32, {4, 8}).view()); }, "[4, 8]"));
  EXPECT_TRUE(throws_error([&] { add_to_y(GuardedTensor(DType::f32, {24}).view()); }, "[24]"));
  EXPECT_TRUE(throws_error([&] { add_to_y(GuardedTensor(DType::f16, {3, 8}).view()); }, "f16"));
  EXPECT_TRUE(throws_error([&] { add_to_y(GuardedTensor(DType::i32, {3, 8}).view()); }, "i32"));
  EXPECT_TRUE(throws_error([&] { add_to_y(Tensor()); }, "add: x is missing"));
  const Tensor on_gpu(y.view().raw(), DType::f32, {3, 8}, {Device::Kind::cuda, 0});
  EXPECT_TRUE(throws_error([&] { add_to_y(on_gpu); }, "on cuda:0"));
  EXPECT_TRUE(throws_error([&] { add(y.view(), on_gpu, cpu.exec); }, "add: y is f32"));
}

TEST(Add, RefusesShiftedOverlapAndTakesInterleavedColumns) {
  CpuContext cpu;
  const GuardedTensor memory = Random(4).tensor(DType::f32, {4, 20});
  const Tensor all = memory.view();
  EXPECT_TRUE(throws_error([&] { add(all.rows(0, 3), all.rows(1, 3), cpu.exec); }, "overlap"));
  EXPECT_TRUE(
      throws_error([&] { add(all.columns(0, 8), all.columns(7, 8), cpu.exec); }, "overlap"));
  EXPECT_TRUE(
      throws_error([&] { add(all.columns(7, 8), all.columns(0, 8), cpu.exec); }, "overlap"));
  EXPECT_NO_THROW(add(all.columns(0, 8), all.columns(8, 8), cpu.exec));
  EXPECT_NO_THROW(add(all.columns(12, 8), all.columns(0, 8), cpu.exec));
  EXPECT_NO_THROW(add(all.rows(0, 2), all.rows(2, 2), cpu.exec));
  // The end of one row reaches into the next row of the other, which starts further left.
  EXPECT_TRUE(throws_error(
      [&] {
        const Tensor a = all.columns(0, 15).rows(0, 3);
        const Tensor b(all.data<float>() + 10, DType::f32, {2, 20}, {});
        add(b.columns(0, 15), a.rows(0, 2), cpu.exec);
      },
      "overlap"));
}

}  // namespace
}  // namespace sparsellm
