#include "tools/bench/read_bandwidth.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

TEST(ReadBandwidth, OfTheCpu) {
  for (const int64_t bytes : {int64_t{1}, int64_t{4096}, (int64_t{1} << 20) + 8}) {
    const double bandwidth = measure_read_bandwidth({}, bytes);
    EXPECT_GT(bandwidth, 0.0);
    EXPECT_TRUE(std::isfinite(bandwidth));
  }
}

TEST(ReadBandwidth, OfNothingIsAnError) {
  EXPECT_TRUE(testing::throws_error([] { measure_read_bandwidth({}, 0); }, "reading 0 bytes"));
  EXPECT_TRUE(testing::throws_error([] { measure_read_bandwidth({}, -5); }, "reading -5 bytes"));
}

}  // namespace
}  // namespace sparsellm
