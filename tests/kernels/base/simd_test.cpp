#include "kernels/base/simd.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/testing/random.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Floats = std::array<float, 8>;

F32x8 vector_of(const Floats& x) { return F32x8::load(x.data()); }

Floats floats_of(F32x8 x) {
  Floats values;
  x.store(values.data());
  return values;
}

Floats random_floats(Random& random, double scale = 10.0) {
  Floats values;
  for (float& value : values) {
    value = static_cast<float>(random.uniform(-scale, scale));
  }
  return values;
}

// Bit for bit, so that -0 and 0 differ; any NaN equals any other.
void expect_same(const Floats& got, const Floats& expected) {
  for (size_t i = 0; i < 8; ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(got[i])) << i;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(expected[i]))
          << i << ": " << got[i] << " and " << expected[i];
    }
  }
}

template <class Vector, class Scalar>
void expect_elementwise(Vector vector, Scalar scalar) {
  Random random(81);
  for (int round = 0; round < 1000; ++round) {
    const Floats a = random_floats(random);
    const Floats b = random_floats(random);
    const Floats c = random_floats(random);
    Floats expected;
    for (size_t i = 0; i < 8; ++i) {
      expected[i] = scalar(a[i], b[i], c[i]);
    }
    expect_same(floats_of(vector(vector_of(a), vector_of(b), vector_of(c))), expected);
  }
}

TEST(F32x8, Arithmetic) {
  expect_elementwise([](F32x8 a, F32x8 b, F32x8) { return a + b; },
                     [](float a, float b, float) { return a + b; });
  expect_elementwise([](F32x8 a, F32x8 b, F32x8) { return a - b; },
                     [](float a, float b, float) { return a - b; });
  expect_elementwise([](F32x8 a, F32x8 b, F32x8) { return a * b; },
                     [](float a, float b, float) { return a * b; });
  expect_elementwise([](F32x8 a, F32x8 b, F32x8) { return a / b; },
                     [](float a, float b, float) { return a / b; });
  expect_elementwise([](F32x8 a, F32x8 b, F32x8 c) { return fma(a, b, c); },
                     [](float a, float b, float c) { return std::fma(a, b, c); });
  expect_elementwise([](F32x8 a, F32x8 b, F32x8) { return max(a, b); },
                     [](float a, float b, float) { return std::max(a, b); });
  expect_elementwise([](F32x8 a, F32x8 b, F32x8) { return min(a, b); },
                     [](float a, float b, float) { return std::min(a, b); });
  expect_elementwise([](F32x8 a, F32x8, F32x8) { return round(a); },
                     [](float a, float, float) { return std::nearbyint(a); });
}

TEST(F32x8, RoundTakesTiesToEven) {
  expect_same(floats_of(round(vector_of({0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 0.49f, 1e9f, -126.5f}))),
              {0.0f, 2.0f, 2.0f, -0.0f, -2.0f, 0.0f, 1e9f, -126.0f});
}

TEST(F32x8, MaxAndMinReturnTheSecondOperandForANan) {
  const F32x8 nan = F32x8::all(kNan);
  const F32x8 one = F32x8::all(1.0f);
  Floats ones;
  ones.fill(1.0f);
  Floats nans;
  nans.fill(kNan);
  expect_same(floats_of(max(nan, one)), ones);
  expect_same(floats_of(max(one, nan)), nans);
  expect_same(floats_of(min(nan, one)), ones);
  expect_same(floats_of(min(one, nan)), nans);
}

TEST(F32x8, KeepAbove) {
  const Floats x = {1.0f, 0.5f, 0.49f, -0.0f, -1.0f, kNan, kInfinity, -kInfinity};
  expect_same(floats_of(keep_above(vector_of(x), F32x8::all(0.5f))),
              {1.0f, 0.0f, 0.0f, 0.0f, 0.0f, kNan, kInfinity, 0.0f});
  expect_same(floats_of(keep_above(vector_of(x), F32x8::zero())),
              {1.0f, 0.5f, 0.49f, 0.0f, 0.0f, kNan, kInfinity, 0.0f});
}

TEST(F32x8, LoadsEvery16BitValue) {
  for (uint32_t first = 0; first < 0x10000; first += 8) {
    Half halves[8];
    BFloat16 bfloats[8];
    Floats from_half;
    Floats from_bfloat;
    for (uint32_t i = 0; i < 8; ++i) {
      halves[i].bits = bfloats[i].bits = static_cast<uint16_t>(first + i);
      from_half[i] = to_float(halves[i]);
      from_bfloat[i] = to_float(bfloats[i]);
    }
    expect_same(floats_of(F32x8::load(halves)), from_half);
    expect_same(floats_of(F32x8::load(bfloats)), from_bfloat);
  }
}

TEST(F32x8, PartialLoadsAndStoresStayInside) {
  for (int64_t count = 0; count < 8; ++count) {
    const std::vector<float> exact(static_cast<size_t>(count), 3.0f);  // nothing after it
    const std::vector<Half> exact_halves(static_cast<size_t>(count), to_half(3.0f));
    const std::vector<BFloat16> exact_bfloats(static_cast<size_t>(count), to_bfloat16(3.0f));
    Floats expected{};
    std::fill_n(expected.begin(), count, 3.0f);
    expect_same(floats_of(load_partial(exact.data(), count)), expected);
    expect_same(floats_of(load_partial(exact_halves.data(), count)), expected);
    expect_same(floats_of(load_partial(exact_bfloats.data(), count)), expected);
    Floats target;
    target.fill(9.0f);
    store_partial(F32x8::all(3.0f), target.data(), count);
    for (int64_t i = 0; i < 8; ++i) {
      EXPECT_EQ(target[static_cast<size_t>(i)], i < count ? 3.0f : 9.0f);
    }
  }
}

TEST(F32x8, SumsHaveOneOrder) {
  Random random(82);
  for (int round = 0; round < 1000; ++round) {
    Floats x[4];
    float expected[4];
    for (int i = 0; i < 4; ++i) {
      x[i] = random_floats(random);
      const Floats& v = x[i];
      // Sums of two have one rounding each and cannot be contracted.
      expected[i] = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    }
    float sums[4];
    sum4(vector_of(x[0]), vector_of(x[1]), vector_of(x[2]), vector_of(x[3]), sums);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(sums[i], expected[i]);
      EXPECT_EQ(sum(vector_of(x[i])), expected[i]);
    }
  }
}

TEST(F32x8, MaxElement) {
  for (size_t place = 0; place < 8; ++place) {
    Floats x;
    x.fill(-5.0f);
    x[place] = -2.0f;
    EXPECT_EQ(max_element(vector_of(x)), -2.0f);
    x[place] = kInfinity;
    EXPECT_EQ(max_element(vector_of(x)), kInfinity);
  }
  EXPECT_EQ(max_element(F32x8::all(-kInfinity)), -kInfinity);
}

TEST(F32x8, Exp2OfIntegers) {
  for (int n = -126; n <= 127; ++n) {
    EXPECT_EQ(floats_of(exp2_integral(F32x8::all(static_cast<float>(n))))[3],
              static_cast<float>(std::ldexp(1.0, n)));
  }
}

TEST(Exp, IsWithinAnUlpOrSo) {
  double worst = 0.0;
  const auto check = [&](const Floats& x) {
    const Floats y = floats_of(exp(vector_of(x)));
    for (size_t i = 0; i < 8; ++i) {
      const double expected = std::exp(double{x[i]});
      worst = std::max(worst, std::abs(y[i] / expected - 1.0));
    }
  };
  for (int64_t i = -873000; i <= 882992; i += 8) {
    Floats x;
    for (int64_t j = 0; j < 8; ++j) {
      x[static_cast<size_t>(j)] = static_cast<float>(i + j) * 1e-4f;
    }
    check(x);
  }
  Random random(83);
  for (int round = 0; round < 20000; ++round) {
    check(random_floats(random, 1.0));
    check(random_floats(random, 1e-3));
  }
  EXPECT_LT(worst, 1.5e-7);  // f32 has an epsilon of 1.19e-7
}

TEST(Exp, AtTheEdges) {
  expect_same(floats_of(exp(vector_of({0.0f, -0.0f, 1e-30f, -1e-30f, 1e-45f, kNan, -kNan, 0.0f}))),
              {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, kNan, kNan, 1.0f});
  const Floats y = floats_of(
      exp(vector_of({-87.3f, -100.0f, -1e30f, -kInfinity, 88.3f, 100.0f, 1e30f, kInfinity})));
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(y[i], 1.2e-38f, 0.05e-38f);
    EXPECT_NEAR(y[4 + i], 2.2e38f, 0.05e38f);
  }
}

}  // namespace
}  // namespace sparsellm
