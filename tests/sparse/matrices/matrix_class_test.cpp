#include "sparse/matrices/matrix_class.h"

#include <gtest/gtest.h>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

TEST(MatrixClass, ParsesItsOwnName) {
  for (const MatrixClass matrix_class : kMatrixClasses) {
    EXPECT_EQ(parse_matrix_class(name_of(matrix_class)), matrix_class);
  }
  EXPECT_EQ(parse_matrix_class("power-law"), MatrixClass::power_law);
  EXPECT_EQ(matrix_class_names(),
            "banded, stencil, power-law, blocks, uniform, skewed, arrow, empty-rows");
}

TEST(MatrixClass, RefusesOthers) {
  for (const char* text : {"", "Banded", "power_law", "uniform ", "dense", "band\n"}) {
    EXPECT_TRUE(throws_error([&] { parse_matrix_class(text); },
                             "is not known; use one of banded, stencil, power-law, blocks, "))
        << text;
  }
}

}  // namespace
}  // namespace sparsellm
