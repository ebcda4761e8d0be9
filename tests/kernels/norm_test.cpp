#include "kernels/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/base/buffer.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};
constexpr float kEpsilon = 1e-5f;

enum class Norm { layer, rms };

Expected reference(Norm norm, const Tensor& x, const Tensor& weight, const Tensor& bias,
                   double epsilon) {
  const std::vector<double> in = values_of(x);
  const std::vector<double> w = values_of(weight);
  const std::vector<double> b = bias.empty() ? std::vector<double>(w.size(), 0.0) : values_of(bias);
  const size_t features = w.size();
  const auto n = static_cast<double>(features);
  Expected result;
  for (size_t first = 0; first < in.size(); first += features) {
    double mean = 0.0;
    double mean_magnitude = 0.0;  // an error of the mean is in proportion to it
    for (size_t i = 0; norm == Norm::layer && i < features; ++i) {
      mean += in[first + i] / n;
      mean_magnitude += std::abs(in[first + i]) / n;
    }
    double variance = 0.0;
    for (size_t i = 0; i < features; ++i) {
      variance += (in[first + i] - mean) * (in[first + i] - mean) / n;
    }
    const double scale = 1.0 / std::sqrt(variance + epsilon);
    for (size_t i = 0; i < features; ++i) {
      const double distance = in[first + i] - mean;
      result.values.push_back(distance * scale * w[i] + b[i]);
      result.magnitudes.push_back(
          (std::abs(in[first + i]) + mean_magnitude) * scale * std::abs(w[i]) + std::abs(b[i]));
    }
  }
  return result;
}

void run(Norm norm, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y,
         ExecContext& ctx) {
  if (norm == Norm::layer) {
    layer_norm(x, {.weight = weight, .bias = bias, .epsilon = kEpsilon}, y, ctx);
  } else {
    rms_norm(x, {.weight = weight, .bias = {}, .epsilon = kEpsilon}, y, ctx);
  }
}

class NormTest : public ::testing::TestWithParam<Norm> {};
INSTANTIATE_TEST_SUITE_P(Norms, NormTest, ::testing::Values(Norm::layer, Norm::rms),
                         [](const auto& test) {
                           return test.param == Norm::layer ? "LayerNorm" : "RmsNorm";
                         });

TEST_P(NormTest, AnySizeStrideDtypeAndThreadCount) {
  Random random(11);
  int combination = 0;
  for (int threads : {1, 2, 5}) {
    CpuContext cpu(threads);
    for (int64_t tokens : {0, 1, 3, 17, 130}) {
      for (int64_t features : {1, 2, 7, 8, 9, 31, 256, 257}) {
        for (DType weight_dtype : kFloats) {
          ++combination;
          const Layout layout = combination % 2 == 0 ? Layout::strided : Layout::contiguous;
          const DType bias_dtype = kFloats[combination / 2 % 3];
          const bool has_bias = GetParam() == Norm::layer && combination % 5 != 0;
          SCOPED_TRACE(fmt::format("{} threads, [{}, {}], weight {}, bias {}", threads, tokens,
                                   features, name_of(weight_dtype),
                                   has_bias ? name_of(bias_dtype) : "none"));
          const GuardedTensor x = random.tensor(DType::f32, {tokens, features}, layout, -2.0, 3.0);
          const GuardedTensor weight = random.tensor(weight_dtype, {features});
          const GuardedTensor bias = random.tensor(bias_dtype, {features});
          const Tensor used_bias = has_bias ? bias.view() : Tensor();
          const Expected expected =
              reference(GetParam(), x.view(), weight.view(), used_bias, kEpsilon);
          const GuardedTensor y(DType::f32, {tokens, features}, layout);
          run(GetParam(), x.view(), weight.view(), used_bias, y.view(), cpu.exec);
          EXPECT_TRUE(all_close(y.view(), expected, 4.0));
          EXPECT_TRUE(y.guards_intact());
          run(GetParam(), x.view(), weight.view(), used_bias, x.view(), cpu.exec);
          EXPECT_TRUE(same_bits(x.view(), y.view())) << "in place";
          EXPECT_TRUE(x.guards_intact());
        }
      }
    }
  }
}

TEST_P(NormTest, ARowDoesNotDependOnTheOthers) {
  CpuContext one(1);
  CpuContext five(5);
  Random random(12);
  const GuardedTensor x = random.tensor(DType::f32, {400, 77});
  const GuardedTensor weight = random.tensor(DType::f32, {77});
  const GuardedTensor bias = random.tensor(DType::f32, {77});
  const GuardedTensor together(DType::f32, {400, 77});
  run(GetParam(), x.view(), weight.view(), bias.view(), together.view(), five.exec);
  const GuardedTensor alone(DType::f32, {400, 77});
  for (int64_t row = 0; row < 400; ++row) {
    run(GetParam(), x.view().rows(row, 1), weight.view(), bias.view(), alone.view().rows(row, 1),
        one.exec);
  }
  EXPECT_TRUE(same_bits(together.view(), alone.view()));
}

// As in a layer, where what is added lies where the result goes.
TEST_P(NormTest, TheResultMayTakeThePlaceOfWhatIsAdded) {
  CpuContext cpu(2);
  Random random(16);
  const GuardedTensor weight = random.tensor(DType::f32, {77});
  const NormParams params{.weight = weight.view(), .bias = {}, .epsilon = kEpsilon};
  const auto add_norm = GetParam() == Norm::layer ? &add_layer_norm : &add_rms_norm;
  const GuardedTensor delta = random.tensor(DType::f32, {30, 77});
  const GuardedTensor x = random.tensor(DType::f32, {30, 77});
  const GuardedTensor x_apart(DType::f32, {30, 77});
  const GuardedTensor apart(DType::f32, {30, 77});
  copy_bytes({}, x_apart.view().raw(), {}, x.view().raw(), x.view().bytes());
  add_norm(delta.view(), x_apart.view(), params, apart.view(), cpu.exec);
  add_norm(delta.view(), x.view(), params, delta.view(), cpu.exec);
  EXPECT_TRUE(same_bits(delta.view(), apart.view()));
  EXPECT_TRUE(same_bits(x.view(), x_apart.view()));
  EXPECT_TRUE(throws_error(
      [&] {
        add_norm(delta.view().rows(0, 20), x.view().rows(0, 20), params, delta.view().rows(1, 20),
                 cpu.exec);
      },
      "overlap"));
}

// MiniCPM scales what blocks add, and what the head multiplies by.
TEST_P(NormTest, ScalesWhatIsAddedAndWhatIsNormalised) {
  CpuContext cpu(2);
  Random random(17);
  constexpr float kDelta = 0.125f;  // exact products
  constexpr float kScale = 0.25f;
  const GuardedTensor weight = random.tensor(DType::f32, {77});
  const GuardedTensor bias = random.tensor(DType::f32, {77});
  const GuardedTensor delta = random.tensor(DType::f32, {5, 77});
  const GuardedTensor x = random.tensor(DType::f32, {5, 77});
  std::vector<double> sums = values_of(x.view());
  const std::vector<double> added = values_of(delta.view());
  for (size_t i = 0; i < added.size(); ++i) {
    sums[i] = static_cast<float>(sums[i] + kDelta * added[i]);
  }
  const bool is_layer = GetParam() == Norm::layer;
  const NormParams params{.weight = weight.view(),
                          .bias = is_layer ? bias.view() : Tensor(),
                          .epsilon = kEpsilon,
                          .scale = kScale,
                          .delta_scale = kDelta};
  const GuardedTensor y(DType::f32, {5, 77});
  (is_layer ? add_layer_norm : add_rms_norm)(delta.view(), x.view(), params, y.view(), cpu.exec);
  EXPECT_EQ(values_of(x.view()), sums);
  Expected expected = reference(GetParam(), x.view(), weight.view(), {}, kEpsilon);
  const std::vector<double> b = values_of(bias.view());
  for (size_t i = 0; i < expected.values.size(); ++i) {
    expected.values[i] = kScale * expected.values[i] + (is_layer ? b[i % 77] : 0.0);
    expected.magnitudes[i] = kScale * expected.magnitudes[i] + (is_layer ? std::abs(b[i % 77]) : 0);
  }
  EXPECT_TRUE(all_close(y.view(), expected, 4.0));
}

// A variance from sum(x^2) - n * mean^2 would have no correct digit here.
TEST_P(NormTest, ALargeMeanCostsNoMoreThanItsOwnRounding) {
  CpuContext cpu;
  Random random(13);
  const GuardedTensor x = random.tensor(DType::f32, {5, 515}, Layout::contiguous, 999.0, 1001.0);
  const GuardedTensor weight = random.tensor(DType::f32, {515});
  const GuardedTensor y(DType::f32, {5, 515});
  const Expected expected = reference(GetParam(), x.view(), weight.view(), Tensor(), kEpsilon);
  run(GetParam(), x.view(), weight.view(), Tensor(), y.view(), cpu.exec);
  EXPECT_TRUE(all_close(y.view(), expected, 4.0));
}

TEST_P(NormTest, EpsilonCarriesTinyRows) {
  CpuContext cpu;
  Random random(14);
  const GuardedTensor x = random.tensor(DType::f32, {3, 40}, Layout::contiguous, -1e-4, 1e-4);
  std::fill_n(x.view().row<float>(1), 40, 0.0f);
  const GuardedTensor weight = random.tensor(DType::f16, {40});
  const GuardedTensor y(DType::f32, {3, 40});
  const Expected expected = reference(GetParam(), x.view(), weight.view(), Tensor(), kEpsilon);
  run(GetParam(), x.view(), weight.view(), Tensor(), y.view(), cpu.exec);
  EXPECT_TRUE(all_close(y.view(), expected, 4.0));
}

TEST_P(NormTest, NanFillsItsRowOnly) {
  CpuContext cpu;
  Random random(15);
  for (int64_t place : {0, 7, 8, 12}) {
    const GuardedTensor x = random.tensor(DType::f32, {3, 13});
    x.view().row<float>(1)[place] = std::numeric_limits<float>::quiet_NaN();
    const GuardedTensor weight = random.tensor(DType::f32, {13});
    const GuardedTensor y(DType::f32, {3, 13});
    run(GetParam(), x.view(), weight.view(), Tensor(), y.view(), cpu.exec);
    const std::vector<double> values = values_of(y.view());
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(std::isnan(values[i]), i / 13 == 1) << i;
    }
  }
}

TEST_P(NormTest, RefusesMismatchedOperands) {
  CpuContext cpu;
  const GuardedTensor x(DType::f32, {3, 8});
  const GuardedTensor weight(DType::f32, {8});
  const GuardedTensor good(DType::f32, {3, 8});
  struct Case {
    Tensor x, weight, bias, y;
    const char* message;
  };
  const GuardedTensor half(DType::f16, {3, 8});
  const GuardedTensor wide(DType::f32, {3, 9});
  const GuardedTensor nine(DType::f32, {9});
  const GuardedTensor row(DType::f32, {1, 8});
  const GuardedTensor ints(DType::i32, {8});
  const Case cases[] = {
      {half.view(), weight.view(), {}, good.view(), "x is f16"},
      {x.view(), weight.view(), {}, half.view(), "y is f16"},
      {x.view(), weight.view(), {}, wide.view(), "y is f32 [3, 9]"},
      {x.view(), nine.view(), {}, good.view(), "weight is f32 [9]"},
      {x.view(), row.view(), {}, good.view(), "weight is f32 [1, 8]"},
      {x.view(), ints.view(), {}, good.view(), "weight is i32 [8]"},
      {x.view(), {}, {}, good.view(), "weight is missing"},
      {{}, weight.view(), {}, good.view(), "x is missing"},
      {wide.view().columns(0, 8), weight.view(), {}, wide.view().columns(1, 8), "overlap"},
  };
  for (const Case& c : cases) {
    EXPECT_TRUE(
        throws_error([&] { run(GetParam(), c.x, c.weight, c.bias, c.y, cpu.exec); }, c.message));
  }
  if (GetParam() == Norm::layer) {
    EXPECT_TRUE(throws_error(
        [&] { run(GetParam(), x.view(), weight.view(), nine.view(), good.view(), cpu.exec); },
        "layer_norm: bias is f32 [9]"));
  }
  for (float epsilon : {-1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_TRUE(throws_error(
        [&] {
          rms_norm(x.view(), {.weight = weight.view(), .bias = {}, .epsilon = epsilon}, good.view(),
                   cpu.exec);
        },
        "epsilon"));
  }
}

}  // namespace
}  // namespace sparsellm
