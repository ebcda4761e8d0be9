#include "tests/testing/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tests/testing/guarded_tensor.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"

namespace sparsellm::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool close(double got, double expected, double tolerance) {
  const GuardedTensor x(DType::f32, {1});
  set_values(x.view(), std::vector{got});
  return static_cast<bool>(all_close(x.view(), std::vector{expected}, std::vector{tolerance}));
}

TEST(AllClose, ComparesWithinTheTolerance) {
  EXPECT_TRUE(close(1.0, 1.0, 0.0));
  EXPECT_TRUE(close(1.0, 1.25, 0.25));
  EXPECT_FALSE(close(1.0, 1.25, 0.2499));
  EXPECT_FALSE(close(1.0, -1.0, 0.5));
  EXPECT_FALSE(close(1.0, 1.25, 0.0));
}

TEST(AllClose, NanPassesOnlyWhereItIsExpected) {
  EXPECT_TRUE(close(kNan, kNan, 0.0));
  EXPECT_FALSE(close(kNan, 1.0, 1e30));
  EXPECT_FALSE(close(1.0, kNan, 1e30));
  EXPECT_FALSE(close(kNan, kInfinity, 1e30));
}

TEST(AllClose, InfinityPassesOnlyWhereItIsExpected) {
  EXPECT_TRUE(close(kInfinity, kInfinity, 0.0));
  EXPECT_TRUE(close(-kInfinity, -kInfinity, 1.0));
  EXPECT_FALSE(close(kInfinity, -kInfinity, 1e30));
  EXPECT_FALSE(close(kInfinity, 1.0, 1e30));
  EXPECT_FALSE(close(1.0, kInfinity, 1e30));
}

TEST(AllClose, AToleranceThatIsNoNumberLetsNothingPass) {
  for (double tolerance : {kNan, kInfinity, -1.0}) {
    EXPECT_FALSE(close(1.0, 2.0, tolerance));
    EXPECT_TRUE(close(1.0, 1.0, tolerance));
  }
}

TEST(AllClose, NamesTheWorstElement) {
  const GuardedTensor x(DType::f32, {2, 3}, Layout::strided);
  set_values(x.view(), std::vector<double>{1, 2, 3, 4, 5.5, 6.25});
  const auto result = all_close(x.view(), std::vector<double>{1, 2, 3, 4, 5, 6},
                                std::vector<double>{0, 0, 0, 0, 0.25, 0.01});
  EXPECT_FALSE(result);
  EXPECT_EQ(std::string(result.message()),
            "2 of 6 elements differ; the worst is [1, 2]: got 6.25, expected 6, tolerance 0.01");
}

TEST(AllClose, RefusesAnotherNumberOfElements) {
  const GuardedTensor x(DType::f32, {2});
  EXPECT_FALSE(all_close(x.view(), std::vector<double>(3, kNan), std::vector<double>(3, 0.0)));
  EXPECT_FALSE(all_close(x.view(), std::vector<double>(2, kNan), std::vector<double>(1, 0.0)));
}

TEST(AllClose, ScalesTheToleranceWithTheMagnitude) {
  const GuardedTensor x(DType::f32, {1});
  const double epsilon = std::numeric_limits<float>::epsilon();
  set_values(x.view(), std::vector{1.0});
  EXPECT_TRUE(all_close(x.view(), {{1.0 + 20.0 * epsilon}, {10.0}}, 2.0));
  EXPECT_FALSE(all_close(x.view(), {{1.0 + 22.0 * epsilon}, {10.0}}, 2.0));
}

// A value that was rounded once to the tensor's dtype passes with a factor of 0.
TEST(AllClose, AllowsForTheRoundingToTheDtype) {
  Random random(91);
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (double scale : {1.0, 1e-3, 1e-7}) {  // 1e-7 is subnormal in f16
      Expected expected;
      for (int i = 0; i < 1000; ++i) {
        expected.values.push_back(static_cast<float>(random.uniform(-scale, scale)));
        expected.magnitudes.push_back(0.0);
      }
      const GuardedTensor x(dtype, {1000});
      set_values(x.view(), expected.values);
      EXPECT_TRUE(all_close(x.view(), expected, 0.0)) << name_of(dtype) << " " << scale;
    }
  }
}

TEST(SameBits, ComparesShapesDtypesAndBits) {
  const GuardedTensor x = Random(92).tensor(DType::f32, {3, 4});
  const GuardedTensor y = Random(92).tensor(DType::f32, {3, 4}, Layout::strided);
  EXPECT_TRUE(same_bits(y.view(), x.view()));
  y.view().row<float>(2)[1] = std::nextafter(y.view().row<float>(2)[1], 2.0f);
  const auto result = same_bits(y.view(), x.view());
  EXPECT_FALSE(result);
  EXPECT_EQ(std::string(result.message()).find("[2, 1] differs: got "), 0u);
  EXPECT_FALSE(same_bits(x.view(), GuardedTensor(DType::f32, {4, 3}).view()));
  EXPECT_FALSE(same_bits(x.view(), GuardedTensor(DType::i32, {3, 4}).view()));
}

TEST(GuardedTensor, IsPoisonedAndSeesWritesOutside) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (Layout layout : {Layout::contiguous, Layout::strided}) {
      const GuardedTensor x(dtype, {3, 5}, layout);
      for (double value : values_of(x.view())) {
        EXPECT_TRUE(std::isnan(value));
      }
      set_values(x.view(), std::vector<double>(15, 1.0));
      EXPECT_TRUE(x.guards_intact());
      for (int64_t offset : {int64_t{-1}, 3 * x.view().row_stride()}) {
        auto* outside = static_cast<std::byte*>(x.view().raw()) + offset * size_of(dtype);
        *outside ^= std::byte{1};
        EXPECT_FALSE(x.guards_intact()) << offset;
        *outside ^= std::byte{1};
      }
      EXPECT_TRUE(x.guards_intact());
    }
  }
  const GuardedTensor x(DType::f32, {3, 5}, Layout::strided);
  x.view().row<float>(1)[5] = 1.0f;  // between two rows
  EXPECT_FALSE(x.guards_intact());
}

}  // namespace
}  // namespace sparsellm::testing
