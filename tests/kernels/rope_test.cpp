#include "kernels/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/device/rotate_cpu.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

const RopeScaling kLlama3{.kind = RopeScaling::Kind::llama3,
                          .factor = 8.0f,
                          .low_frequency_factor = 1.0f,
                          .high_frequency_factor = 4.0f,
                          .original_positions = 8192};

double frequency(int64_t i, int64_t head_dim, double theta) {
  return std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
}

TEST(RopeFrequencies, Unscaled) {
  for (int64_t head_dim : {2, 6, 64, 80, 128, 256}) {
    for (float theta : {10000.0f, 500000.0f}) {
      const std::vector<float> frequencies = rope_frequencies(head_dim, theta, {});
      ASSERT_EQ(static_cast<int64_t>(frequencies.size()), head_dim / 2);
      EXPECT_EQ(frequencies[0], 1.0f);
      for (int64_t i = 0; i < head_dim / 2; ++i) {
        const double expected = frequency(i, head_dim, theta);
        // The exponent is rounded to f32; so is the power.
        EXPECT_NEAR(frequencies[static_cast<size_t>(i)], expected, 2e-6 * expected);
      }
    }
  }
}

TEST(RopeFrequencies, LinearScalingDividesByTheFactor) {
  const std::vector<float> plain = rope_frequencies(64, 10000.0f, {});
  const std::vector<float> scaled =
      rope_frequencies(64, 10000.0f, {.kind = RopeScaling::Kind::linear, .factor = 4.0f});
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(scaled[i], plain[i] / 4.0f);
  }
}

TEST(RopeFrequencies, Llama3ScalingKeepsShortAndStretchesLongWavelengths) {
  const std::vector<float> plain = rope_frequencies(128, 500000.0f, {});
  const std::vector<float> scaled = rope_frequencies(128, 500000.0f, kLlama3);
  int kept = 0;
  int blended = 0;
  int stretched = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2.0 * std::numbers::pi / static_cast<double>(plain[i]);
    if (wavelength < 8192.0 / 4.0) {
      ++kept;
      EXPECT_EQ(scaled[i], plain[i]) << i;
    } else if (wavelength > 8192.0) {
      ++stretched;
      EXPECT_EQ(scaled[i], plain[i] / 8.0f) << i;
    } else {
      ++blended;
      const double smooth = (8192.0 / wavelength - 1.0) / (4.0 - 1.0);
      const double expected = static_cast<double>(plain[i]) * ((1.0 - smooth) / 8.0 + smooth);
      EXPECT_NEAR(scaled[i], expected, 1e-6 * expected) << i;
    }
  }
  // Of the 64 frequencies of Llama 3.1 8B.
  EXPECT_EQ(kept, 29);
  EXPECT_EQ(blended, 6);
  EXPECT_EQ(stretched, 29);
}

TEST(RopeFrequencies, RefusesInvalidNumbers) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int64_t head_dim : {int64_t{0}, int64_t{-2}, int64_t{63}, int64_t{1} << 40}) {
    EXPECT_TRUE(throws_error([&] { rope_frequencies(head_dim, 10000.0f, {}); },
                             fmt::format("head_dim {}", head_dim)));
  }
  for (float theta : {0.0f, -1.0f, kNan, kInfinity}) {
    EXPECT_TRUE(throws_error([&] { rope_frequencies(64, theta, {}); }, "theta"));
  }
  for (float factor : {0.0f, -2.0f, kNan, kInfinity}) {
    EXPECT_TRUE(throws_error(
        [&] { rope_frequencies(64, 1e4f, {.kind = RopeScaling::Kind::linear, .factor = factor}); },
        "factor"));
  }
  const auto llama3 = [](float low, float high, int64_t positions) {
    RopeScaling scaling = kLlama3;
    scaling.low_frequency_factor = low;
    scaling.high_frequency_factor = high;
    scaling.original_positions = positions;
    rope_frequencies(64, 1e4f, scaling);
  };
  EXPECT_TRUE(throws_error([&] { llama3(4.0f, 4.0f, 8192); }, "frequency factors"));
  EXPECT_TRUE(throws_error([&] { llama3(0.0f, 4.0f, 8192); }, "frequency factors"));
  EXPECT_TRUE(throws_error([&] { llama3(1.0f, kNan, 8192); }, "frequency factors"));
  EXPECT_TRUE(throws_error([&] { llama3(1.0f, 4.0f, 0); }, "original positions"));
  EXPECT_NO_THROW(llama3(1.0f, 4.0f, 1));
}

TEST(RopeAngles, CosinesThenSines) {
  Random random(31);
  for (int threads : {1, 2, 5}) {
    CpuContext cpu(threads);
    for (int64_t tokens : {0, 1, 3, 17, 130}) {
      for (int64_t head_dim : {2, 14, 64, 514}) {
        for (Layout layout : {Layout::contiguous, Layout::strided}) {
          const int64_t half = head_dim / 2;
          const std::vector<float> frequencies = rope_frequencies(head_dim, 10000.0f, {});
          const GuardedTensor frequency_tensor(DType::f32, {half});
          set_values(frequency_tensor.view(),
                     std::vector<double>(frequencies.begin(), frequencies.end()));
          std::vector<int32_t> positions;
          for (int64_t t = 0; t < tokens; ++t) {
            positions.push_back(static_cast<int32_t>(random.below(t % 2 == 0 ? 10 : 131072)));
          }
          std::vector<double> expected;
          for (int32_t position : positions) {
            for (auto function :
                 {+[](double x) { return std::cos(x); }, +[](double x) { return std::sin(x); }}) {
              for (float f : frequencies) {
                // The angle is an f32, as in the models' training.
                expected.push_back(function(static_cast<float>(position) * f));
              }
            }
          }
          const GuardedTensor cos_sin(DType::f32, {tokens, head_dim}, layout);
          rope_angles(i32_tensor(positions).view(), frequency_tensor.view(), cos_sin.view(),
                      cpu.exec);
          EXPECT_TRUE(
              all_close(cos_sin.view(), expected, std::vector<double>(expected.size(), 2e-7)));
          EXPECT_TRUE(cos_sin.guards_intact());
        }
      }
    }
  }
}

TEST(Rope, RotatesPairsOfAllHeads) {
  Random random(32);
  for (int threads : {1, 2, 5}) {
    CpuContext cpu(threads);
    for (int64_t tokens : {0, 1, 3, 17, 130}) {
      for (int64_t head_dim : {2, 14, 16, 66, 80, 128}) {
        for (int64_t heads : {1, 3}) {
          for (Layout layout : {Layout::contiguous, Layout::strided}) {
            SCOPED_TRACE(fmt::format("{} threads, {} tokens, {} heads of {}", threads, tokens,
                                     heads, head_dim));
            const int64_t half = head_dim / 2;
            const GuardedTensor cos_sin = random.tensor(DType::f32, {tokens, head_dim}, layout);
            const GuardedTensor x = random.tensor(DType::f32, {tokens, heads * head_dim}, layout);
            const std::vector<double> angles = values_of(cos_sin.view());
            const std::vector<double> in = values_of(x.view());
            Expected expected;
            for (int64_t t = 0; t < tokens; ++t) {
              for (int64_t i = 0; i < heads * head_dim; ++i) {
                const int64_t element = i % head_dim;
                const bool first = element < half;
                const double cosine = angles[static_cast<size_t>(t * head_dim + element % half)];
                const double sine =
                    angles[static_cast<size_t>(t * head_dim + half + element % half)];
                const int64_t at = t * heads * head_dim + i;
                const double own = in[static_cast<size_t>(at)] * cosine;
                const double other = in[static_cast<size_t>(first ? at + half : at - half)] * sine;
                expected.values.push_back(first ? own - other : own + other);
                expected.magnitudes.push_back(std::abs(own) + std::abs(other));
              }
            }
            rotate_cpu(cos_sin.view(), x.view(), cpu.exec);
            EXPECT_TRUE(all_close(x.view(), expected, 2.0));
            EXPECT_TRUE(x.guards_intact());
          }
        }
      }
    }
  }
}

TEST(Rope, PositionZeroChangesNothing) {
  CpuContext cpu;
  const GuardedTensor frequencies(DType::f32, {32});
  std::vector<float> values = rope_frequencies(64, 10000.0f, {});
  set_values(frequencies.view(), std::vector<double>(values.begin(), values.end()));
  const GuardedTensor cos_sin(DType::f32, {1, 64});
  rope_angles(i32_tensor({0}).view(), frequencies.view(), cos_sin.view(), cpu.exec);
  const GuardedTensor x = Random(33).tensor(DType::f32, {1, 128});
  const GuardedTensor before = Random(33).tensor(DType::f32, {1, 128});
  rotate_cpu(cos_sin.view(), x.view(), cpu.exec);
  EXPECT_TRUE(same_bits(x.view(), before.view()));
}

TEST(Rope, RefusesMismatchedOperands) {
  CpuContext cpu;
  const GuardedTensor positions = i32_tensor({0, 1, 2});
  const GuardedTensor frequencies(DType::f32, {4});
  const GuardedTensor cos_sin(DType::f32, {3, 8});
  const auto angles = [&](const Tensor& p, const Tensor& f, const Tensor& c) {
    rope_angles(p, f, c, cpu.exec);
  };
  const GuardedTensor floats(DType::f32, {3});
  const GuardedTensor halves(DType::f16, {4});
  const GuardedTensor wide(DType::f32, {3, 9});
  EXPECT_TRUE(throws_error([&] { angles(floats.view(), frequencies.view(), cos_sin.view()); },
                           "rope_angles: positions is f32"));
  EXPECT_TRUE(throws_error([&] { angles(positions.view(), halves.view(), cos_sin.view()); },
                           "rope_angles: frequencies is f16"));
  EXPECT_TRUE(throws_error([&] { angles(positions.view(), frequencies.view(), wide.view()); },
                           "rope_angles: cos_sin is f32 [3, 9] on cpu; expected f32 [3, 8]"));
}

}  // namespace
}  // namespace sparsellm
