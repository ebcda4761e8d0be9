#include "kernels/base/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr DType kFloating[] = {DType::f32, DType::f16, DType::bf16};

// Every 16-bit number, or f32 of every kind.
std::vector<std::byte> numbers(DType dtype) {
  std::vector<std::byte> bytes(static_cast<size_t>((1 << 16) * size_of(dtype)));
  Random random(5);
  for (int64_t i = 0; i < 1 << 16; ++i) {
    const auto bits =
        static_cast<uint32_t>(dtype == DType::f32 ? random.below(int64_t{1} << 32) : i);
    std::memcpy(bytes.data() + i * size_of(dtype), &bits, static_cast<size_t>(size_of(dtype)));
  }
  return bytes;
}

TEST(Convert, RoundsAsTheScalarFunctions) {
  for (DType from : kFloating) {
    const std::vector<std::byte> source = numbers(from);
    for (DType to : kFloating) {
      SCOPED_TRACE(fmt::format("{} to {}", name_of(from), name_of(to)));
      visit_float(from, [&]<class From>(From) {
        visit_float(to, [&]<class To>(To) {
          std::vector<std::byte> expected(size_t{1 << 16} * sizeof(To));
          for (size_t i = 0; i < 1 << 16; ++i) {
            From value;
            std::memcpy(&value, source.data() + i * sizeof(From), sizeof(From));
            const To rounded = from_float<To>(to_float(value));
            std::memcpy(expected.data() + i * sizeof(To), &rounded, sizeof(To));
          }
          std::vector<std::byte> result(expected.size());
          convert(from, source.data(), to, result.data(), 1 << 16);
          EXPECT_TRUE(result == expected);
        });
      });
    }
  }
}

TEST(Convert, TakesAnySizeAndAlignment) {
  std::vector<float> values(5000);
  Random random(6);
  for (float& value : values) {
    value = static_cast<float>(random.uniform(-10.0, 10.0));
  }
  std::vector<std::byte> source(values.size() * sizeof(float) + 1);
  std::memcpy(source.data() + 1, values.data(), values.size() * sizeof(float));
  for (int64_t count : {0, 1, 3, 1023, 1024, 1025, 5000}) {
    std::vector<std::byte> result(static_cast<size_t>(2 * count) + 2, std::byte{0xee});
    EXPECT_EQ(convert(DType::f32, source.data() + 1, DType::bf16, result.data() + 1, count),
              std::nullopt);
    EXPECT_EQ(result.front(), std::byte{0xee});
    EXPECT_EQ(result.back(), std::byte{0xee});
    for (int64_t i = 0; i < count; ++i) {
      BFloat16 value;
      std::memcpy(&value, result.data() + 1 + 2 * i, sizeof(value));
      ASSERT_EQ(value.bits, to_bfloat16(values[static_cast<size_t>(i)]).bits) << i;
    }
  }
}

std::optional<float> overflow(std::vector<float> values, DType to) {
  std::vector<std::byte> result(values.size() * sizeof(float));
  return convert(DType::f32, reinterpret_cast<const std::byte*>(values.data()), to, result.data(),
                 std::ssize(values));
}

TEST(Convert, FindsTheFiniteNumberThatBecomesInfinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(overflow({65504.0f, -65519.0f, kInfinity, -kInfinity, std::nanf("")}, DType::f16),
            std::nullopt);
  EXPECT_EQ(overflow({1.0f, 65520.0f}, DType::f16), 65520.0f);
  EXPECT_EQ(overflow({1.0f, -1e30f}, DType::f16), -1e30f);
  EXPECT_EQ(overflow({1e30f}, DType::bf16), std::nullopt);
  EXPECT_EQ(overflow({std::numeric_limits<float>::max()}, DType::bf16),
            std::numeric_limits<float>::max());
  EXPECT_EQ(overflow({std::numeric_limits<float>::max(), kInfinity}, DType::f32), std::nullopt);
  std::vector<float> late(4000, 1.0f);
  late[3000] = 70000.0f;
  late[3900] = 80000.0f;
  EXPECT_EQ(overflow(late, DType::f16), 70000.0f);
}

TEST(Convert, CountsTheFiniteNumbersThatBecomeInfinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values{65519.0f,   65520.0f,   -1e30f, kInfinity,
                                  -kInfinity, 3.4028e38f, 0.0f,   std::nanf("")};
  std::vector<std::byte> source(values.size() * sizeof(float) + 1);  // not aligned
  std::memcpy(source.data() + 1, values.data(), values.size() * sizeof(float));
  const auto count = [&](DType to, int64_t some) {
    return count_overflows(DType::f32, source.data() + 1, to, some);
  };
  EXPECT_EQ(count(DType::f16, 8), 3);
  EXPECT_EQ(count(DType::f16, 2), 1);
  EXPECT_EQ(count(DType::f16, 0), 0);
  EXPECT_EQ(count(DType::bf16, 8), 1);
  EXPECT_EQ(count(DType::f32, 8), 0);
}

TEST(Convert, RefusesIntegers) {
  std::byte bytes[4] = {};
  EXPECT_TRUE(throws_error([&] { convert(DType::i32, bytes, DType::f32, bytes, 1); }, "i32"));
}

}  // namespace
}  // namespace sparsellm
