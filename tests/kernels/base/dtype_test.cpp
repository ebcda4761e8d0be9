#include "kernels/base/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr DType kIntegers[]{DType::i32, DType::u8, DType::u16, DType::u32, DType::u64};

// A 16-bit format by its definition: sign, exponent, mantissa.
struct Format {
  int exponent_bits;
  int mantissa_bits;
};
constexpr Format kHalf{5, 10};
constexpr Format kBFloat16{8, 7};

double decode(Format format, uint16_t bits) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const int exponent = bits >> format.mantissa_bits & ((1 << format.exponent_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << format.exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  const int fraction = exponent == 0 ? mantissa : mantissa + (1 << format.mantissa_bits);
  return sign * std::ldexp(fraction, std::max(exponent, 1) - bias - format.mantissa_bits);
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_of(DType::f32), 4);
  EXPECT_EQ(size_of(DType::f16), 2);
  EXPECT_EQ(size_of(DType::bf16), 2);
  EXPECT_EQ(size_of(DType::i32), 4);
  EXPECT_EQ(name_of(DType::f32), "f32");
  EXPECT_EQ(name_of(DType::f16), "f16");
  EXPECT_EQ(name_of(DType::bf16), "bf16");
  EXPECT_EQ(name_of(DType::i32), "i32");
}

template <class T>
class Float16Test : public ::testing::Test {
 protected:
  static constexpr bool kIsHalf = std::is_same_v<T, Half>;
  static constexpr Format kFormat = kIsHalf ? kHalf : kBFloat16;
  static constexpr uint16_t kInfinityBits = kIsHalf ? 0x7c00 : 0x7f80;

  static uint16_t round(float value) {
    if constexpr (kIsHalf) {
      return to_half(value).bits;
    } else {
      return to_bfloat16(value).bits;
    }
  }
};
using Float16Types = ::testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(Float16Test, Float16Types);

TYPED_TEST(Float16Test, EveryValueComesOutAndGoesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto code = static_cast<uint16_t>(bits);
    const float value = to_float(TypeParam{code});
    const double expected = decode(this->kFormat, code);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_EQ(std::signbit(value), bits >= 0x8000) << bits;
      const uint16_t back = this->round(value);
      ASSERT_GT(back & 0x7fff, this->kInfinityBits) << bits;
      ASSERT_EQ(back & 0x8000, code & 0x8000) << bits;
    } else {
      ASSERT_EQ(double{value}, expected) << bits;
      ASSERT_EQ(std::signbit(value), bits >= 0x8000) << bits;  // -0 too
      ASSERT_EQ(this->round(value), code) << bits;
    }
  }
}

// Between every two neighbours: the middle goes to the even one, the f32 next to it to the nearer.
TYPED_TEST(Float16Test, RoundsToNearestEven) {
  for (uint16_t sign : {0x0000, 0x8000}) {
    for (uint16_t low = 0; low < this->kInfinityBits; ++low) {
      const auto high = static_cast<uint16_t>(low + 1);
      const double a = decode(this->kFormat, low);
      // The largest finite value has the neighbour that the format would have without infinity.
      const double b = high == this->kInfinityBits
                           ? 2.0 * a - decode(this->kFormat, static_cast<uint16_t>(low - 1))
                           : decode(this->kFormat, high);
      const double exact_middle = (a + b) / 2;
      const auto middle = static_cast<float>(exact_middle);
      ASSERT_EQ(double{middle}, exact_middle);
      const float s = sign == 0 ? 1.0f : -1.0f;
      ASSERT_EQ(this->round(s * middle), sign | (low % 2 == 0 ? low : high)) << low;
      ASSERT_EQ(this->round(s * std::nextafter(middle, 0.0f)), sign | low) << low;
      ASSERT_EQ(this->round(s * std::nextafter(middle, kInfinity)), sign | high) << low;
      ASSERT_EQ(this->round(s * static_cast<float>(a + (b - a) * 0.25)), sign | low) << low;
      ASSERT_EQ(this->round(s * static_cast<float>(a + (b - a) * 0.75)), sign | high) << low;
    }
  }
}

TYPED_TEST(Float16Test, InfinityAndNan) {
  const uint16_t infinity = this->kInfinityBits;
  EXPECT_EQ(this->round(kInfinity), infinity);
  EXPECT_EQ(this->round(-kInfinity), 0x8000 | infinity);
  EXPECT_EQ(this->round(std::numeric_limits<float>::max()), infinity);
  EXPECT_EQ(this->round(std::numeric_limits<float>::lowest()), 0x8000 | infinity);
  // A NaN whose payload lies in the bits that are cut off must not become infinity.
  for (uint32_t bits : {0x7f800001u, 0x7f80ffffu, 0x7fc00000u, 0x7fffffffu}) {
    EXPECT_GT(this->round(std::bit_cast<float>(bits)) & 0x7fff, infinity) << bits;
    const uint16_t negative = this->round(std::bit_cast<float>(bits | 0x80000000u));
    EXPECT_GT(negative & 0x7fff, infinity) << bits;
    EXPECT_NE(negative & 0x8000, 0) << bits;
  }
}

TYPED_TEST(Float16Test, AnyFloatGoesToTheNearest) {
  Random random(71);
  for (int i = 0; i < 1000000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random.below(int64_t{1} << 32)));
    if (!std::isfinite(value)) {
      continue;
    }
    const uint16_t code = this->round(value);
    const auto magnitude = static_cast<uint16_t>(code & 0x7fff);
    if (magnitude == this->kInfinityBits) {
      const double largest = decode(this->kFormat, static_cast<uint16_t>(magnitude - 1));
      ASSERT_GT(std::abs(value), largest);
      continue;
    }
    const double error = std::abs(std::abs(double{value}) - decode(this->kFormat, magnitude));
    for (int step : {-1, 1}) {
      const auto neighbour = static_cast<uint16_t>(magnitude + step);
      if (neighbour < this->kInfinityBits) {
        ASSERT_LE(error, std::abs(std::abs(double{value}) - decode(this->kFormat, neighbour)))
            << value;
      }
    }
    ASSERT_EQ(std::signbit(value), code >= 0x8000) << value;
  }
}

TEST(DType, VisitFloatPassesTheElementType) {
  const auto type_of = [](DType dtype) {
    DType seen = DType::i32;
    visit_float(dtype, [&]<class T>(T) { seen = DTypeOf<T>::value; });
    return seen;
  };
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    EXPECT_EQ(type_of(dtype), dtype);
  }
  for (DType dtype : kIntegers) {
    EXPECT_TRUE(throws_error([&] { type_of(dtype); },
                             fmt::format("expected a floating dtype, got {}", name_of(dtype))));
  }
}

TEST(DType, NamesAndSizes) {
  struct Expected {
    DType dtype;
    int64_t bytes;
    std::string_view name;
    std::string_view in_files;
  };
  for (const auto& [dtype, bytes, name, in_files] : {Expected{DType::f32, 4, "f32", "F32"},
                                                     {DType::f16, 2, "f16", "F16"},
                                                     {DType::bf16, 2, "bf16", "BF16"},
                                                     {DType::i32, 4, "i32", "I32"},
                                                     {DType::u8, 1, "u8", "U8"},
                                                     {DType::u16, 2, "u16", "U16"},
                                                     {DType::u32, 4, "u32", "U32"},
                                                     {DType::u64, 8, "u64", "U64"}}) {
    EXPECT_EQ(size_of(dtype), bytes);
    EXPECT_EQ(name_of(dtype), name);
    EXPECT_EQ(safetensors_name(dtype), in_files);
    EXPECT_EQ(dtype_of_safetensors(in_files), dtype);
    EXPECT_EQ(is_floating(dtype), std::ranges::find(kIntegers, dtype) == std::end(kIntegers));
  }
  for (const char* other : {"", "f32", "F64", "BOOL", "F8_E4M3", "I64"}) {
    EXPECT_EQ(dtype_of_safetensors(other), std::nullopt) << other;
  }
}

TEST(DType, ToFloatOfAFloatIsTheFloat) {
  EXPECT_EQ(to_float(1.5f), 1.5f);
  EXPECT_TRUE(std::isnan(to_float(kNan)));
}

}  // namespace
}  // namespace sparsellm
