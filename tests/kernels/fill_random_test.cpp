#include "kernels/fill_random.h"

#include <cmath>

#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/guarded_tensor.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class FillRandom : public ::testing::TestWithParam<DType> {
 protected:
  GuardedTensor filled(const RandomFill& fill, int64_t n) {
    GuardedTensor x(GetParam(), {n});
    fill_random(fill, x.view(), ctx_.exec);
    EXPECT_TRUE(x.guards_intact());
    return x;
  }

  CpuContext ctx_{2};
};
INSTANTIATE_TEST_SUITE_P(Cpu, FillRandom, ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(FillRandom, IsUniform) {
  constexpr int64_t kCount = 200'000;
  const std::vector<double> values = values_of(filled({.key = 1, .spread = 0.5f}, kCount).view());
  double sum = 0.0;
  double squares = 0.0;
  double products = 0.0;  // of neighbours
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_LE(std::abs(values[i]), 0.5);
    ASSERT_NE(values[i], 0.0);
    sum += values[i];
    squares += values[i] * values[i];
    products += i > 0 ? values[i] * values[i - 1] : 0.0;
  }
  const double deviation = 0.5 / std::sqrt(3.0);  // of one value
  const double error = deviation / std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(sum / kCount, 0.0, 5 * error);
  EXPECT_NEAR(std::sqrt(squares / kCount), deviation, 5 * error);
  EXPECT_NEAR(products / kCount, 0.0, 5 * error * deviation);
}

TEST_P(FillRandom, HasTheFractionOfZeros) {
  constexpr int64_t kCount = 100'000;
  for (double sparsity : {0.0, 0.3, 0.8, 1.0}) {
    const GuardedTensor x = filled({.key = 2, .spread = 0.002f, .sparsity = sparsity}, kCount);
    int64_t zeros = 0;
    for (double value : values_of(x.view())) {
      zeros += value == 0.0 ? 1 : 0;
    }
    const double error = std::sqrt(sparsity * (1.0 - sparsity) / kCount);
    EXPECT_NEAR(static_cast<double>(zeros) / kCount, sparsity, 5 * error);
  }
}

TEST_P(FillRandom, ElementsDependOnKeyAndIndexAlone) {
  const RandomFill fill{.key = random_key(7, "a"), .sparsity = 0.2};
  const GuardedTensor large = filled(fill, 50'000);
  const GuardedTensor small = filled(fill, 33);
  EXPECT_TRUE(same_bits(small.view(), large.view().rows(0, 33)));
  for (uint64_t key : {random_key(8, "a"), random_key(7, "b"), random_key(7, "")}) {
    RandomFill other = fill;
    other.key = key;
    EXPECT_FALSE(same_bits(filled(other, 33).view(), small.view()));
  }
}

TEST_P(FillRandom, FillsWithTheCentreAlone) {
  for (double value : values_of(filled({.key = 3, .centre = 1.0f, .spread = 0.0f}, 100).view())) {
    EXPECT_EQ(value, 1.0);
  }
}

TEST_P(FillRandom, TakesAnEmptyTensorAndRefusesBadArguments) {
  filled({}, 0);
  for (double sparsity : {-0.1, 1.1, std::nan("")}) {
    EXPECT_TRUE(throws_error([&] { filled({.sparsity = sparsity}, 8); }, "sparsity"));
  }
  const GuardedTensor matrix(GetParam(), {2, 3});
  EXPECT_TRUE(throws_error([&] { fill_random({}, matrix.view(), ctx_.exec); }, "fill_random"));
}

}  // namespace
}  // namespace sparsellm
