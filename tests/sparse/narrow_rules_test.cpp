#include "sparse/choice/narrow_rules.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

std::string chosen(const WeightSize& weight, std::string_view records, DType dtype = DType::f16) {
  return std::string(choose_narrow_format(weight, dtype, records).name());
}

TEST(NarrowRules, GoByTheShareOfZeros) {
  const auto of = [](std::string_view records, double density) {
    return chosen({.rows = 4096, .columns = 4096, .density = density}, records);
  };
  const double least = 1.0 - least_zeros_for_bitmaps(ValueType::i8);
  EXPECT_EQ(of("i8", 1.0), "dense_i8");
  EXPECT_EQ(of("i8", least + 0.001), "dense_i8");
  EXPECT_EQ(of("i8", least), "tca_bme");
  EXPECT_EQ(of("i8", 0.0), "tca_bme");
  for (const double density : {0.0, 0.2, 0.5, 0.75, 1.0}) {
    EXPECT_EQ(of("f8", density), "tca_bme");
    for (const char* records : {"i4", "i4:32", "i4:64", "i4:128"}) {
      EXPECT_EQ(of(records, density), "dense_i4");
    }
  }
}

TEST(NarrowRules, TakeTheOtherFormatOrDenseOneWhereBytesAreNotSaved) {
  // A record without bitmaps has 64 x 128 elements, whatever the matrix has of them.
  EXPECT_EQ(chosen({.rows = 64, .columns = 16, .density = 0.1}, "i4"), "tca_bme");
  EXPECT_EQ(chosen({.rows = 4, .columns = 4, .density = 1.0}, "i4"), "dense");
  EXPECT_EQ(chosen({.rows = 4, .columns = 4, .density = 1.0}, "f8"), "dense");
  EXPECT_EQ(chosen({.rows = 0, .columns = 0}, "i8"), "dense");
  EXPECT_EQ(chosen({.rows = 4096, .columns = 4096}, "i8", DType::bf16), "dense_i8");
  EXPECT_EQ(chosen({.rows = 4096, .columns = 4096}, "i8", DType::f32), "dense");
}

TEST(NarrowRules, AreOfNarrowValuesAlone) {
  for (const char* records : {"", "size", "i2"}) {
    EXPECT_TRUE(testing::throws_error([&] { chosen({.rows = 64, .columns = 64}, records); },
                                      "names no type of narrow values"));
  }
}

}  // namespace
}  // namespace sparsellm
