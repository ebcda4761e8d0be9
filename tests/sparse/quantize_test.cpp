#include "sparse/quantize/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "sparse/prune/prune.h"
#include "sparse/quantize/quantization_error.h"
#include "sparse/quantize/quantized_matrix.h"
#include "tests/testing/guarded_tensor.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using testing::GuardedTensor;
using testing::Layout;
using testing::Random;
using testing::set_values;
using testing::throws_error;
using testing::values_of;

constexpr uint64_t kSeed = 20261129;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kLeastF32 = std::numeric_limits<float>::denorm_min();
constexpr double kLargestF32 = std::numeric_limits<float>::max();

constexpr DType kDTypes[] = {DType::f16, DType::bf16, DType::f32};

struct Shape {
  int64_t rows = 0;
  int64_t columns = 0;
};

// A type, and the group for it.
struct Kind {
  ValueType type = ValueType::i8;
  int64_t group = 0;

  double largest() const {
    return type == ValueType::i8 ? 127.0 : type == ValueType::f8 ? 448.0 : 7.0;
  }
};
constexpr Kind kKinds[] = {{ValueType::i8},
                           {ValueType::f8},
                           {ValueType::i4, 32},
                           {ValueType::i4, 64},
                           {ValueType::i4, 128}};

std::string describe(Kind kind, DType dtype, Shape shape) {
  return fmt::format("{} group {} of {} [{}, {}], seed {}", name_of(kind.type), kind.group,
                     name_of(dtype), shape.rows, shape.columns, kSeed);
}

GuardedTensor tensor_of(DType dtype, Shape shape, const std::vector<double>& values,
                        Layout layout = Layout::contiguous) {
  GuardedTensor w(dtype, {shape.rows, shape.columns}, layout);
  set_values(w.view(), values);
  return w;
}

QuantizedMatrix quantized(const Tensor& w, Kind kind, int threads = 1) {
  ThreadPool pool(threads);
  return quantize(w, kind.type, kind.group, pool);
}

std::vector<double> dequantized(const QuantizedMatrix& q, DType dtype) {
  ThreadPool pool(2);
  const OwnedTensor dense = dequantize(q, dtype, pool);
  EXPECT_EQ(dense.view.size(0), q.rows);
  EXPECT_EQ(dense.view.size(1), q.columns);
  return values_of(dense.view);
}

double normal(Random& random) {
  const double radius = std::sqrt(-2.0 * std::log(random.uniform(1e-300, 1.0)));
  return radius * std::cos(random.uniform(0.0, 2.0 * std::numbers::pi));
}

// Normally distributed, and 0 but for a share.
std::vector<double> sparse_normal(Shape shape, double density, Random& random,
                                  double deviation = 0.02) {
  std::vector<double> values(static_cast<size_t>(shape.rows * shape.columns));
  for (double& value : values) {
    const double weight = deviation * normal(random);
    value = random.uniform(0.0, 1.0) < density ? weight : 0.0;
  }
  return values;
}

// OCP 8-bit floating point, section 5.2, from powers alone.
double e4m3(int bits) {
  if (bits % 128 == 127) {
    return kNan;
  }
  const double sign = bits >= 128 ? -1.0 : 1.0;
  const int exponent = bits % 128 / 8;
  const double mantissa = bits % 8 / 8.0;
  return exponent == 0 ? sign * mantissa * std::pow(2.0, -6)
                       : sign * (1.0 + mantissa) * std::pow(2.0, exponent - 7);
}

// All numbers that a rounded weight may become, in order; of each whether ties go to it.
struct Number {
  double value = 0.0;
  bool even = false;
};
std::vector<Number> numbers_of(ValueType type) {
  std::vector<Number> numbers;
  if (type == ValueType::f8) {
    for (int bits = 0; bits < 256; ++bits) {
      if (bits != 128 && bits % 128 != 127) {  // one zero is enough
        numbers.push_back({e4m3(bits), bits % 2 == 0});
      }
    }
  } else {
    const int low = type == ValueType::i8 ? -127 : -8;
    const int high = type == ValueType::i8 ? 127 : 7;
    for (int i = low; i <= high; ++i) {
      numbers.push_back({static_cast<double>(i), i % 2 == 0});
    }
  }
  std::ranges::sort(numbers, {}, &Number::value);
  return numbers;
}

double nearest(const std::vector<Number>& numbers, double x) {
  const auto above = std::ranges::lower_bound(numbers, x, {}, &Number::value);
  if (above == numbers.begin() || above == numbers.end()) {
    return above == numbers.begin() ? numbers.front().value : numbers.back().value;
  }
  const auto below = above - 1;
  const double up = above->value - x;
  const double down = x - below->value;
  return up < down || (up == down && above->even) ? above->value : below->value;
}

double squared_error(const std::vector<Number>& numbers, const std::vector<double>& weights,
                     double scale) {
  double sum = 0.0;
  for (double w : weights) {
    const double error = w - nearest(numbers, w / scale) * scale;
    sum += error * error;
  }
  return sum;
}

double largest_of(const std::vector<double>& weights) {
  double largest = 0.0;
  for (double w : weights) {
    largest = std::max(largest, std::fabs(w));
  }
  return largest;
}

double largest_number(DType dtype) {
  return dtype == DType::f16 ? 65504.0 : dtype == DType::bf16 ? 0x1.fep127 : kLargestF32;
}

// From here on numbers round to infinity.
double infinite_from(DType dtype) {
  return dtype == DType::f16 ? 65520.0 : dtype == DType::bf16 ? 0x1.ffp127 : 0x1.ffffffp127;
}

// The largest magnitude over the largest number, as it is stored.
double plain_scale(Kind kind, const std::vector<double>& weights) {
  const double scale = largest_of(weights) / kind.largest();
  if (kind.type == ValueType::i4) {
    const float clamped = static_cast<float>(std::clamp(scale, 0x1p-24, 65504.0));
    return to_float(to_half(clamped));
  }
  return std::max(static_cast<double>(static_cast<float>(scale)), kLeastF32);
}

// The weights that share a scale.
std::vector<double> group_of(const std::vector<double>& w, const QuantizedMatrix& q, int64_t row,
                             int64_t group) {
  const int64_t first = group * q.group;
  const int64_t stop = std::min(q.columns, first + q.group);
  const auto begin = w.begin() + row * q.columns;
  return {begin + first, begin + stop};
}

// Everything that holds for any finite w.
void check(const GuardedTensor& w, Kind kind) {
  const std::vector<double> weights = values_of(w.view());
  const QuantizedMatrix q = quantized(w.view(), kind);
  EXPECT_TRUE(w.guards_intact());
  require_valid(q);
  ASSERT_EQ(q.rows, w.view().size(0));
  ASSERT_EQ(q.columns, w.view().size(1));
  ASSERT_EQ(q.type, kind.type);
  const std::vector<Number> numbers = numbers_of(kind.type);
  for (int64_t row = 0; row < q.rows; ++row) {
    for (int64_t group = 0; group < q.groups(); ++group) {
      SCOPED_TRACE(fmt::format("row {}, group {}", row, group));
      const std::vector<double> own = group_of(weights, q, row, group);
      const double scale = q.scales[static_cast<size_t>(row * q.groups() + group)];
      const double largest = largest_of(own);
      if (largest == 0.0) {
        EXPECT_EQ(scale, 1.0);
      }
      for (size_t i = 0; i < own.size(); ++i) {
        const auto place = static_cast<size_t>(row * q.columns + group * q.group) + i;
        const int8_t code = q.codes[place];
        const double value = value_of(q.type, code);
        ASSERT_EQ(value, nearest(numbers, own[i] / scale)) << own[i] << " at a scale of " << scale;
        ASSERT_EQ(value == 0.0, code == 0);  // a zero has one code
        if (q.type != ValueType::f8 && std::fabs(own[i]) <= kind.largest() * scale) {
          ASSERT_LE(std::fabs(own[i] - value * scale), scale / 2);
        }
      }
      const double plain = plain_scale(kind, own);
      const bool too_large = std::ranges::any_of(own, [&](double weight) {
        const double value = nearest(numbers, weight / plain) * plain;
        return std::fabs(value) >= infinite_from(w.view().dtype());
      });
      if (!too_large) {
        EXPECT_LE(squared_error(numbers, own, scale),
                  squared_error(numbers, own, plain) * (1 + 1e-12));
      }
    }
  }
  for (double value : dequantized(q, w.view().dtype())) {
    ASSERT_TRUE(std::isfinite(value));
  }
}

void expect_same(const QuantizedMatrix& a, const QuantizedMatrix& b) {
  EXPECT_EQ(a.codes, b.codes);
  EXPECT_EQ(a.scales, b.scales);
}

TEST(Quantize, RoundsToNearestAtAScaleThatIsNoWorseThanPlain) {
  Random random(kSeed);
  for (Shape shape : {Shape{1, 1}, {3, 7}, {5, 33}, {2, 129}, {3, 200}, {17, 1}, {2, 515}}) {
    for (DType dtype : kDTypes) {
      for (double density : {0.0, 1.0 / static_cast<double>(shape.columns), 0.05, 0.5, 1.0}) {
        const std::vector<double> values = sparse_normal(shape, density, random);
        for (Kind kind : kKinds) {
          SCOPED_TRACE(describe(kind, dtype, shape) + fmt::format(", density {}", density));
          check(tensor_of(dtype, shape, values), kind);
        }
      }
    }
  }
}

TEST(Quantize, IsTheSameForAnyThreadsAndStrides) {
  Random random(kSeed);
  for (Shape shape : {Shape{130, 257}, {1, 5000}, {1000, 9}}) {
    const std::vector<double> values = sparse_normal(shape, 0.5, random);
    for (DType dtype : kDTypes) {
      const GuardedTensor w = tensor_of(dtype, shape, values);
      const GuardedTensor strided = tensor_of(dtype, shape, values, Layout::strided);
      for (Kind kind : {kKinds[0], kKinds[1], kKinds[3]}) {
        SCOPED_TRACE(describe(kind, dtype, shape));
        const QuantizedMatrix q = quantized(w.view(), kind);
        expect_same(q, quantized(w.view(), kind, 3));
        expect_same(q, quantized(strided.view(), kind, 3));
      }
    }
  }
}

TEST(Quantize, EmptyMatrices) {
  ThreadPool pool(2);
  for (Kind kind : kKinds) {
    for (Shape shape : {Shape{0, 5}, {5, 0}, {0, 0}}) {
      SCOPED_TRACE(describe(kind, DType::f16, shape));
      const OwnedTensor w = allocate_tensor({}, DType::f16, {shape.rows, shape.columns}, "none");
      const QuantizedMatrix q = quantized(w.view, kind);
      require_valid(q);
      EXPECT_TRUE(q.codes.empty());
      EXPECT_TRUE(dequantized(q, DType::f32).empty());
      EXPECT_EQ(quantization_error(w.view, q, pool).relative(), 0.0);
    }
  }
}

TEST(Quantize, ZerosOfEitherSign) {
  // Of the second row all but one become zero.
  const GuardedTensor w = tensor_of(DType::f32, {2, 4},
                                    {0.0, -0.0, 0.0, -0.0,  //
                                     1.0, -1e-9, 1e-9, -0.0});
  for (Kind kind : kKinds) {
    SCOPED_TRACE(describe(kind, DType::f32, {2, 4}));
    const QuantizedMatrix q = quantized(w.view(), kind);
    EXPECT_EQ(q.scales[0], 1.0f);
    EXPECT_EQ(std::vector<int8_t>(q.codes.begin(), q.codes.begin() + 4), std::vector<int8_t>(4));
    EXPECT_NE(q.codes[4], 0);
    EXPECT_EQ(std::vector<int8_t>(q.codes.begin() + 5, q.codes.end()), std::vector<int8_t>(3));
    check(w, kind);
  }
}

TEST(Quantize, NumbersOfTheTypeStayAsTheyAre) {
  for (Kind kind : {kKinds[0], kKinds[1], kKinds[2]}) {
    std::vector<double> values;
    for (const Number& number : numbers_of(kind.type)) {
      if (number.value != -8.0 || kind.type != ValueType::i4) {
        values.push_back(number.value);
      }
    }
    const Shape shape{1, static_cast<int64_t>(values.size())};
    for (double factor : {1.0, 0x1p-5}) {
      SCOPED_TRACE(describe(kind, DType::f32, shape));
      std::vector<double> scaled = values;
      for (double& value : scaled) {
        value *= factor;
      }
      const QuantizedMatrix q = quantized(tensor_of(DType::f32, shape, scaled).view(), kind);
      EXPECT_EQ(dequantized(q, DType::f32), scaled);
    }
  }
}

TEST(Quantize, EqualWeights) {
  for (Kind kind : kKinds) {
    for (double weight : {1.0, -0.3, 1e-3, -60000.0, 65504.0, -65504.0}) {
      for (DType dtype : kDTypes) {
        SCOPED_TRACE(describe(kind, dtype, {2, 300}) + fmt::format(", {}", weight));
        const GuardedTensor w = tensor_of(dtype, {2, 300}, std::vector<double>(600, weight));
        check(w, kind);
        const double stored = values_of(w.view())[0];
        const double unit = kind.type == ValueType::i4 ? 0x1p-11 : 0x1p-23;
        for (double value : dequantized(quantized(w.view(), kind), DType::f32)) {
          // Scales of f16 near the largest number are coarse.
          ASSERT_NEAR(value, stored, std::fabs(stored) * 2 * unit);
        }
      }
    }
  }
}

TEST(Quantize, Outliers) {
  Random random(kSeed);
  for (double outlier : {0.2, -0.2, 1.0, -5.0, 1000.0}) {
    const Shape shape{4, 260};
    std::vector<double> values = sparse_normal(shape, 0.5, random);
    for (size_t i = 0; i < values.size(); i += 61) {
      values[i] = outlier;
    }
    for (DType dtype : kDTypes) {
      for (Kind kind : kKinds) {
        SCOPED_TRACE(describe(kind, dtype, shape) + fmt::format(", outlier {}", outlier));
        check(tensor_of(dtype, shape, values), kind);
      }
    }
  }
}

// Weights around the ends of what their dtype and the scales can be.
TEST(Quantize, SmallestAndLargest) {
  Random random(kSeed);
  const Shape shape{40, 70};
  for (double deviation : {kLeastF32, 1e-44, 1e-40, 1e-38, 1e-30, 0x1p-24, 1e-7, 1e-6, 1e4, 3e4,
                           1e5, 1e6, 1e30, 1e37, 1e38}) {
    for (DType dtype : kDTypes) {
      const double largest = largest_number(dtype);
      std::vector<double> values = sparse_normal(shape, 0.5, random, deviation);
      for (double& value : values) {
        value = std::clamp(value, -largest, largest);
      }
      for (Kind kind : kKinds) {
        SCOPED_TRACE(describe(kind, dtype, shape) + fmt::format(", deviation {}", deviation));
        check(tensor_of(dtype, shape, values), kind);
      }
    }
  }
}

// The search is as good far from 1, where the squares of weights leave f32.
TEST(Quantize, ScalesFollowTheWeights) {
  Random random(kSeed);
  const Shape shape{20, 100};
  std::vector<double> values = sparse_normal(shape, 0.5, random, 1.0);
  const GuardedTensor w = tensor_of(DType::f32, shape, values);
  values = values_of(w.view());
  for (Kind kind : {kKinds[0], kKinds[1]}) {
    const QuantizedMatrix q = quantized(w.view(), kind);
    for (float factor : {0x1p-90f, 0x1p100f}) {
      SCOPED_TRACE(describe(kind, DType::f32, shape));
      std::vector<double> scaled = values;
      for (double& value : scaled) {
        value *= factor;
      }
      QuantizedMatrix same = quantized(tensor_of(DType::f32, shape, scaled).view(), kind);
      for (float& scale : same.scales) {
        scale /= factor;
      }
      expect_same(same, q);
    }
  }
}

TEST(Quantize, OneSmallestWeight) {
  for (DType dtype : kDTypes) {
    const double least = dtype == DType::f16 ? 0x1p-24 : dtype == DType::bf16 ? 0x1p-133 : 0x1p-149;
    for (Kind kind : kKinds) {
      SCOPED_TRACE(describe(kind, dtype, {1, 3}));
      const GuardedTensor w = tensor_of(dtype, {1, 3}, {0.0, -least, 0.0});
      check(w, kind);
      const QuantizedMatrix q = quantized(w.view(), kind);
      const bool representable = kind.type != ValueType::i4 || dtype == DType::f16;
      EXPECT_EQ(q.codes[1] != 0, representable);
      EXPECT_EQ(dequantized(q, dtype)[1], representable ? -least : 0.0);
    }
  }
}

// Near the largest number a scale that is good by its error alone gives infinities.
TEST(Quantize, WhatIsDequantisedIsFinite) {
  Random random(kSeed);
  for (DType dtype : kDTypes) {
    const double largest = largest_number(dtype);
    std::vector<double> values(100 * 128);
    for (double& value : values) {
      const double magnitude = largest * (random.below(4) == 0 ? 1.0 : random.uniform(0.0, 1.0));
      value = random.below(2) == 0 ? magnitude : -magnitude;
    }
    for (Kind kind : kKinds) {
      SCOPED_TRACE(describe(kind, dtype, {100, 128}));
      check(tensor_of(dtype, {100, 128}, values), kind);
    }
  }
}

TEST(Quantize, RefusesWhatIsNotFinite) {
  for (DType dtype : kDTypes) {
    for (Kind kind : kKinds) {
      SCOPED_TRACE(describe(kind, dtype, {300, 70}));
      for (double bad : {kInfinity, -kInfinity, kNan}) {
        for (int threads : {1, 3}) {
          std::vector<double> values(300 * 70, 0.5);
          values[7 * 70 + 69] = bad;  // the first of two
          values[250 * 70] = kNan;
          const GuardedTensor w = tensor_of(dtype, {300, 70}, values, Layout::strided);
          EXPECT_TRUE(throws_error(
              [&] { quantized(w.view(), kind, threads); },
              std::isnan(bad) ? "row 7, column 69 is NaN" : "row 7, column 69 is infinite"));
        }
      }
    }
  }
}

TEST(Quantize, RefusesOtherTensorsAndGroups) {
  const GuardedTensor w = tensor_of(DType::f16, {2, 3}, std::vector<double>(6, 1.0));
  for (int64_t group : {-32, 0, 1, 16, 33, 256}) {
    EXPECT_TRUE(throws_error(
        [&] {
          quantized(w.view(), {ValueType::i4, group});
        },
        fmt::format("{} columns of i4", group)));
  }
  const GuardedTensor row(DType::f16, {3});
  EXPECT_TRUE(throws_error([&] { quantized(row.view(), kKinds[0]); }, "[3]"));
  const GuardedTensor whole(DType::i32, {2, 3});
  EXPECT_TRUE(throws_error([&] { quantized(whole.view(), kKinds[0]); }, "not of i32"));
  Tensor elsewhere(w.view().raw(), DType::f16, {2, 3}, Device{Device::Kind::cuda, 0});
  EXPECT_TRUE(throws_error([&] { quantized(elsewhere, kKinds[0]); }, "not on"));
  EXPECT_TRUE(throws_error([&] { quantized(w.view(), {static_cast<ValueType>(9)}); }, "9"));
}

// The least error of many scales, each exact.
double least_error(const std::vector<Number>& numbers, const std::vector<double>& weights) {
  double least = kInfinity;
  const double largest = largest_of(weights);
  const double most = std::max(numbers.back().value, -numbers.front().value);
  for (double fraction = 0.45; fraction < 4.0; fraction *= 1.003) {
    least = std::min(least, squared_error(numbers, weights, fraction * largest / most));
  }
  return least;
}

// Summed over some groups: what quantize() leaves, and the least that the numbers allow.
struct Errors {
  double found = 0.0;
  double least = 0.0;
  double plain = 0.0;
};
Errors errors_of(Kind kind, Shape shape, double density, const std::vector<Number>& numbers) {
  Random random(kSeed);
  const GuardedTensor w = tensor_of(DType::f32, shape, sparse_normal(shape, density, random));
  const std::vector<double> weights = values_of(w.view());
  const QuantizedMatrix q = quantized(w.view(), kind, 2);
  Errors errors;
  for (int64_t row = 0; row < q.rows; ++row) {
    for (int64_t group = 0; group < q.groups(); ++group) {
      std::vector<double> own = group_of(weights, q, row, group);
      std::erase(own, 0.0);
      if (!own.empty()) {
        const double scale = q.scales[static_cast<size_t>(row * q.groups() + group)];
        errors.found += squared_error(numbers_of(kind.type), own, scale);
        errors.least += least_error(numbers, own);
        errors.plain += squared_error(numbers_of(kind.type), own, plain_scale(kind, own));
      }
    }
  }
  return errors;
}

TEST(Quantize, ScalesAreNearlyTheBest) {
  for (double density : {0.05, 0.5, 1.0}) {
    for (int64_t group : {32, 128}) {
      const Kind kind{ValueType::i4, group};
      SCOPED_TRACE(describe(kind, DType::f32, {8, 256}) + fmt::format(", density {}", density));
      const Errors errors = errors_of(kind, {8, 256}, density, numbers_of(kind.type));
      EXPECT_LT(errors.found, 1.01 * errors.least);
      EXPECT_LT(1.1 * errors.found, errors.plain);
    }
  }
  for (Kind kind : {kKinds[0], kKinds[1]}) {
    SCOPED_TRACE(describe(kind, DType::f32, {4, 600}));
    const Errors errors = errors_of(kind, {4, 600}, 0.5, numbers_of(kind.type));
    EXPECT_LT(errors.found, 1.05 * errors.least);
    EXPECT_LT(errors.found, errors.plain);
  }
}

TEST(Quantize, EightBelowZeroPays) {
  std::vector<Number> symmetric = numbers_of(ValueType::i4);
  symmetric.erase(symmetric.begin());
  for (double density : {0.5, 1.0}) {
    const Errors errors = errors_of({ValueType::i4, 128}, {16, 256}, density, symmetric);
    EXPECT_LT(1.05 * errors.found, errors.least) << "density " << density;
  }
}

// The sum of squares of what pruning by magnitude takes, and what rounding the rest adds to it.
double added_share(Kind kind) {
  Random random(kSeed);
  const Shape shape{24, 4096};
  const std::vector<double> values = sparse_normal(shape, 1.0, random);
  const GuardedTensor w = tensor_of(DType::f16, shape, values);
  const std::vector<double> before = values_of(w.view());
  ThreadPool pool(2);
  prune(w.view(), {.method = parse_prune_method("magnitude"), .sparsity = 0.5, .norms = {}}, pool);
  const std::vector<double> after = values_of(w.view());
  double pruned = 0.0;
  for (size_t i = 0; i < before.size(); ++i) {
    pruned += after[i] == 0.0 ? before[i] * before[i] : 0.0;
  }
  const QuantizationError error = quantization_error(w.view(), quantized(w.view(), kind, 2), pool);
  EXPECT_EQ(error.nonzeros, shape.rows * shape.columns / 2);
  EXPECT_EQ(error.lost, 0);
  return error.squared_error / pruned;
}

TEST(Quantize, AddsLittleToTheErrorOfPruning) {
  EXPECT_LT(added_share({ValueType::i4, 128}), 0.09);
  EXPECT_LT(added_share({ValueType::i4, 64}), 0.075);
  EXPECT_LT(added_share({ValueType::i4, 32}), 0.06);
  EXPECT_LT(added_share({ValueType::i8}), 0.001);
  EXPECT_LT(added_share({ValueType::f8}), 0.012);
}

TEST(QuantizationError, IsThatOfProducts) {
  Random random(kSeed);
  const Shape shape{37, 141};
  for (DType dtype : kDTypes) {
    for (Kind kind : kKinds) {
      SCOPED_TRACE(describe(kind, dtype, shape));
      const GuardedTensor w =
          tensor_of(dtype, shape, sparse_normal(shape, 0.5, random), Layout::strided);
      QuantizedMatrix q = quantized(w.view(), kind);
      q.codes[5] = 0;  // as of a weight that was too small
      q.codes[140] = kind.type == ValueType::f8 ? -128 : 0;
      const std::vector<double> weights = values_of(w.view());
      QuantizationError expected;
      for (int64_t i = 0; i < shape.rows * shape.columns; ++i) {
        const double weight = weights[static_cast<size_t>(i)];
        const int64_t row = i / q.columns;
        const int64_t group = i % q.columns / q.group;
        const double scale = q.scales[static_cast<size_t>(row * q.groups() + group)];
        const double value = value_of(q.type, q.codes[static_cast<size_t>(i)]);
        expected.squared_error += (weight - value * scale) * (weight - value * scale);
        expected.squared_weights += weight * weight;
        expected.nonzeros += weight != 0.0 ? 1 : 0;
        expected.lost += weight != 0.0 && value == 0.0 ? 1 : 0;
      }
      for (int threads : {1, 3}) {
        ThreadPool pool(threads);
        const QuantizationError error = quantization_error(w.view(), q, pool);
        EXPECT_NEAR(error.squared_error, expected.squared_error, 1e-12 * expected.squared_error);
        EXPECT_NEAR(error.squared_weights, expected.squared_weights,
                    1e-12 * expected.squared_weights);
        EXPECT_EQ(error.nonzeros, expected.nonzeros);
        EXPECT_EQ(error.lost, expected.lost);
        EXPECT_NEAR(error.relative(), std::sqrt(expected.squared_error / expected.squared_weights),
                    1e-12);
      }
    }
  }
}

// bf16 has weights for which the scales of i4, f16, are too large or too small.
TEST(QuantizationError, CountsWhatScalesDoNotReach) {
  ThreadPool pool(2);
  std::vector<double> values(64 * 2, 0.0);
  values[0] = 1e-9;  // in the first group of 32
  values[3] = -2e-9;
  values[40] = 1e6;
  values[41] = 1.0;
  values[64] = 1.0;  // of the next row
  values[100] = 0x1p-24;
  const GuardedTensor w = tensor_of(DType::bf16, {2, 64}, values);
  const QuantizationError error =
      quantization_error(w.view(), quantized(w.view(), {ValueType::i4, 32}), pool);
  EXPECT_EQ(error.groups, 4);
  EXPECT_EQ(error.lost_groups, 1);
  EXPECT_EQ(error.clipped_groups, 1);
  EXPECT_EQ(error.lost, 3);
  for (const Kind& wide : {Kind{ValueType::i8}, Kind{ValueType::f8}}) {
    const QuantizationError rows = quantization_error(w.view(), quantized(w.view(), wide), pool);
    EXPECT_EQ(rows.groups, 2);
    EXPECT_EQ(rows.lost_groups, 0);
    EXPECT_EQ(rows.clipped_groups, 0);
  }
}

TEST(QuantizationError, DoesNotDependOnThreads) {
  Random random(kSeed);
  const Shape shape{500, 99};
  const GuardedTensor w = tensor_of(DType::bf16, shape, sparse_normal(shape, 0.5, random));
  const QuantizedMatrix q = quantized(w.view(), kKinds[2]);
  ThreadPool one(1);
  ThreadPool three(3);
  const QuantizationError a = quantization_error(w.view(), q, one);
  const QuantizationError b = quantization_error(w.view(), q, three);
  EXPECT_EQ(a.squared_error, b.squared_error);
  EXPECT_EQ(a.squared_weights, b.squared_weights);
}

TEST(QuantizationError, Totals) {
  QuantizationError total;
  EXPECT_EQ(total.relative(), 0.0);
  total += {.squared_error = 1.0, .squared_weights = 60.0, .nonzeros = 7, .lost = 1};
  total += {.squared_error = 3.0, .squared_weights = 40.0, .nonzeros = 5, .lost = 2};
  EXPECT_EQ(total.relative(), 0.2);
  EXPECT_EQ(total.nonzeros, 12);
  EXPECT_EQ(total.lost, 3);
}

TEST(QuantizationError, RefusesOtherShapes) {
  ThreadPool pool(1);
  const GuardedTensor w = tensor_of(DType::f16, {2, 3}, std::vector<double>(6, 1.0));
  const GuardedTensor other = tensor_of(DType::f16, {3, 2}, std::vector<double>(6, 1.0));
  QuantizedMatrix q = quantized(w.view(), kKinds[0]);
  EXPECT_TRUE(throws_error([&] { quantization_error(other.view(), q, pool); }, "[3, 2]"));
  q.codes.pop_back();
  EXPECT_TRUE(throws_error([&] { quantization_error(w.view(), q, pool); }, "5 codes"));
}

TEST(ValueType, Names) {
  for (ValueType type : {ValueType::i8, ValueType::f8, ValueType::i4}) {
    EXPECT_EQ(parse_value_type(name_of(type)), type);
  }
  for (const char* name : {"", "i", "I8", "i8 ", "i16", "e4m3", "i4\n"}) {
    EXPECT_TRUE(throws_error([&] { parse_value_type(name); }, "use i8, f8 or i4"));
  }
}

TEST(ValueType, ValuesOfCodes) {
  for (int bits = 0; bits < 256; ++bits) {
    const auto code = static_cast<int8_t>(bits);
    const double value = value_of(ValueType::f8, code);
    if (bits == 0x7f || bits == 0xff) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      EXPECT_EQ(value, e4m3(bits)) << bits;
      EXPECT_EQ(std::signbit(value), bits >= 128) << bits;
    }
    EXPECT_EQ(value_of(ValueType::i8, code), bits < 128 ? bits : bits - 256);
  }
  EXPECT_EQ(value_of(ValueType::f8, 0x38), 1.0f);
  EXPECT_EQ(value_of(ValueType::f8, 0x7e), 448.0f);
  EXPECT_EQ(value_of(ValueType::f8, 0x01), 0x1p-9f);
  EXPECT_EQ(value_of(ValueType::f8, 0x08), 0x1p-6f);
  for (int code = -8; code < 8; ++code) {
    EXPECT_EQ(value_of(ValueType::i4, static_cast<int8_t>(code)), code);
  }
}

// All finite numbers of a dtype of 16 bits, in order, with the first that is too large.
template <class T>
std::vector<Number> numbers_of_dtype(uint16_t infinity) {
  std::vector<Number> numbers;
  for (int bits = 0; bits < infinity; ++bits) {
    const double value = to_float(T{static_cast<uint16_t>(bits)});
    numbers.push_back({value, bits % 2 == 0});
    if (bits > 0) {
      numbers.push_back({-value, bits % 2 == 0});
    }
  }
  std::ranges::sort(numbers, {}, &Number::value);
  const double step = numbers.back().value - (numbers.end() - 2)->value;
  const double overflow = numbers.back().value + step;
  numbers.push_back({overflow, true});
  numbers.insert(numbers.begin(), {-overflow, true});
  return numbers;
}

// Products that lie so close to the middle of two numbers that f32 cannot tell.
template <class T>
void expect_rounded_once(int mantissa_bits, uint16_t infinity, double smallest) {
  constexpr DType kDType = DTypeOf<T>::value;
  const std::vector<Number> numbers = numbers_of_dtype<T>(infinity);
  QuantizedMatrix q{.type = ValueType::i8, .columns = 255, .group = 255};
  const auto add_row = [&](double scale) {
    q.scales.push_back(static_cast<float>(scale));
    for (int code = -127; code <= 127; ++code) {
      q.codes.push_back(static_cast<int8_t>(code));
    }
    ++q.rows;
  };
  const double half_step = std::ldexp(1.0, -mantissa_bits - 1);
  for (int code : {3, 7, 11, 37, 77, 101, 127}) {
    for (double middle : {1.0 + half_step, 1.0 + 3 * half_step, 1.5 + half_step}) {
      const float scale = static_cast<float>(middle / code);
      add_row(std::nextafter(scale, 0.0f));
      add_row(scale);
      add_row(std::nextafter(scale, 2.0f));
    }
  }
  for (double scale : {smallest, smallest * 0.5, smallest * 0.51, smallest / 254, smallest * 1.1,
                       numbers.back().value / 127, (numbers.end() - 2)->value / 127,
                       (numbers.back().value + (numbers.end() - 2)->value) / 254}) {
    add_row(std::max<double>(static_cast<float>(scale), kLeastF32));
  }
  const std::vector<double> values = dequantized(q, kDType);
  int twice = 0;  // where rounding to f32 first would be wrong
  for (size_t i = 0; i < values.size(); ++i) {
    const double scale = q.scales[i / 255];
    const double product = q.codes[i] * scale;
    double expected = nearest(numbers, product);
    if (std::fabs(expected) == numbers.back().value) {
      expected = std::copysign(kInfinity, expected);
    }
    ASSERT_EQ(values[i], expected) << int{q.codes[i]} << " * " << scale;
    twice += to_float(from_float<T>(static_cast<float>(product))) != expected ? 1 : 0;
  }
  EXPECT_GT(twice, 0);
}

TEST(Dequantize, RoundsOnce) {
  expect_rounded_once<Half>(10, 0x7c00, 0x1p-24);
  expect_rounded_once<BFloat16>(7, 0x7f80, 0x1p-133);
}

TEST(Dequantize, ScalesOfGroups) {
  Random random(kSeed);
  for (Kind kind : kKinds) {
    QuantizedMatrix q{.type = kind.type, .rows = 3, .columns = 141};
    q.group = kind.type == ValueType::i4 ? kind.group : q.columns;
    for (int64_t i = 0; i < q.rows * q.columns; ++i) {
      const int64_t code = kind.type == ValueType::i4 ? random.below(16) - 8 : random.below(127);
      q.codes.push_back(static_cast<int8_t>(code));
    }
    for (int64_t i = 0; i < q.rows * q.groups(); ++i) {
      q.scales.push_back(to_float(to_half(static_cast<float>(random.uniform(0.1, 2.0)))));
    }
    const std::vector<double> values = dequantized(q, DType::f32);
    for (int64_t i = 0; i < q.rows * q.columns; ++i) {
      const int64_t group = i % q.columns / q.group;
      const double scale = q.scales[static_cast<size_t>(i / q.columns * q.groups() + group)];
      const double value = value_of(q.type, q.codes[static_cast<size_t>(i)]);
      ASSERT_EQ(values[static_cast<size_t>(i)], static_cast<float>(value * scale));
    }
  }
}

TEST(Dequantize, RefusesOtherDTypes) {
  ThreadPool pool(1);
  const QuantizedMatrix q{.rows = 1, .columns = 1, .group = 1, .codes = {1}, .scales = {1.0f}};
  EXPECT_TRUE(throws_error([&] { dequantize(q, DType::i32, pool); }, "not to i32"));
}

// A valid matrix with one thing changed.
template <class Change>
void expect_invalid(Kind kind, Change&& change, std::string_view part) {
  Random random(kSeed);
  const GuardedTensor w = random.tensor(DType::f16, {3, 140});
  QuantizedMatrix q = quantized(w.view(), kind);
  require_valid(q);
  change(q);
  EXPECT_TRUE(throws_error([&] { require_valid(q); }, part)) << name_of(kind.type);
  ThreadPool pool(1);
  EXPECT_TRUE(throws_error([&] { dequantize(q, DType::f32, pool); }, part)) << name_of(kind.type);
}

TEST(RequireValid, NamesWhatIsWrong) {
  using Matrix = QuantizedMatrix;
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (Kind kind : kKinds) {
    expect_invalid(
        kind, [](Matrix& q) { q.type = static_cast<ValueType>(3); }, "unknown type 3");
    expect_invalid(
        kind, [](Matrix& q) { q.rows = -1; }, "-1 x 140");
    expect_invalid(
        kind, [](Matrix& q) { q.rows = 4; }, "4 x 140");
    expect_invalid(
        kind, [](Matrix& q) { q.rows = kHuge; }, "64 bits");
    expect_invalid(
        kind, [](Matrix& q) { q.columns = -q.columns; }, "-140");
    expect_invalid(
        kind, [](Matrix& q) { q.group = 0; }, "0");
    expect_invalid(
        kind, [](Matrix& q) { q.group = -32; }, "-32");
    expect_invalid(
        kind, [](Matrix& q) { q.group = 48; }, "48");
    expect_invalid(
        kind, [](Matrix& q) { q.codes.push_back(0); }, "421 codes");
    expect_invalid(
        kind, [](Matrix& q) { q.scales.pop_back(); }, "scales");
    const int64_t groups = kind.type == ValueType::i4 ? (139 / kind.group) + 1 : 1;
    const std::string last = fmt::format("row 2, group {}", groups - 1);
    for (float bad : {0.0f, -1.0f, static_cast<float>(kInfinity), static_cast<float>(kNan)}) {
      expect_invalid(
          kind, [=](Matrix& q) { q.scales.back() = bad; }, last);
    }
  }
  const Kind i4{ValueType::i4, 64};
  for (float scale : {1.0001f, 0x1p-25f, 65536.0f}) {
    expect_invalid(
        i4, [=](Matrix& q) { q.scales[0] = scale; }, "not a number of f16");
  }
  expect_invalid(
      i4, [](Matrix& q) { q.codes[141] = -9; }, "row 1, column 1 is -9");
  expect_invalid(
      i4, [](Matrix& q) { q.codes[141] = 8; }, "row 1, column 1 is 8");
  const Kind f8{ValueType::f8};
  expect_invalid(
      f8, [](Matrix& q) { q.codes[141] = 0x7f; }, "row 1, column 1 is 127");
  expect_invalid(
      f8, [](Matrix& q) { q.codes[141] = -1; }, "row 1, column 1 is -1");
}

}  // namespace
}  // namespace sparsellm
