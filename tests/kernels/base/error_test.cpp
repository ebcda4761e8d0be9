#include "kernels/base/error.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

TEST(Error, FailFormatsItsMessage) {
  EXPECT_TRUE(throws_error([] { fail("{} of {}", 3, "four"); }, "3 of four"));
}

TEST(Error, RequireThrowsOnlyWhenBroken) {
  EXPECT_NO_THROW(require(true, "never {}", 1));
  EXPECT_TRUE(throws_error([] { require(false, "broken {}", 1); }, "broken 1"));
}

TEST(Error, IsARuntimeError) { EXPECT_THROW(fail("x"), std::runtime_error); }

// Values may come from files: braces in them are not formats.
TEST(Error, BracesInValuesAreText) {
  const std::string name = "{} {0} {";
  EXPECT_TRUE(throws_error([&] { fail("name {}", name); }, "name {} {0} {"));
}

TEST(CheckedMul, ReturnsProductsThatFit) {
  EXPECT_EQ(checked_mul(0, kMax, "x"), 0);
  EXPECT_EQ(checked_mul(1, kMin, "x"), kMin);
  EXPECT_EQ(checked_mul(-3, 7, "x"), -21);
  EXPECT_EQ(checked_mul(int64_t{1} << 31, int64_t{1} << 31, "x"), int64_t{1} << 62);
}

TEST(CheckedMul, NamesWhatOverflows) {
  EXPECT_TRUE(throws_error([] { checked_mul(int64_t{1} << 32, int64_t{1} << 31, "bytes of w"); },
                           "bytes of w: 4294967296 * 2147483648 does not fit 64 bits"));
  EXPECT_TRUE(throws_error([] { checked_mul(kMin, -1, "x"); }, "does not fit"));
  EXPECT_TRUE(throws_error([] { checked_mul(kMax, kMax, "x"); }, "does not fit"));
}

TEST(CheckedAdd, ReturnsSumsThatFit) {
  EXPECT_EQ(checked_add(kMax, 0, "x"), kMax);
  EXPECT_EQ(checked_add(kMax, kMin, "x"), -1);
  EXPECT_EQ(checked_add(-3, 7, "x"), 4);
}

TEST(CheckedAdd, NamesWhatOverflows) {
  EXPECT_TRUE(throws_error([] { checked_add(kMax, 1, "end of w"); }, "end of w: "));
  EXPECT_TRUE(throws_error([] { checked_add(kMin, -1, "x"); }, "does not fit"));
}

}  // namespace
}  // namespace sparsellm
