#include "engine/logit_scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace sparsellm {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kSizes[] = {1, 2, 7, 8, 9, 63, 64, 65, 1000, 1024, 1025, 2049, 5003};

// Steps of 1/4: with ties.
std::vector<float> random_logits(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(-3.0f, 2.0f);
  std::vector<float> logits(size);
  for (float& logit : logits) {
    logit = std::round(4.0f * normal(random)) / 4.0f;
  }
  return logits;
}

TEST(LogitScan, FindsANanOrAnInfinityAnywhere) {
  for (size_t size : kSizes) {
    std::vector<float> logits = random_logits(size, 1);
    logits[0] = std::numeric_limits<float>::max();
    logits[size / 2] = std::numeric_limits<float>::denorm_min();
    EXPECT_TRUE(all_finite(logits)) << size;
    for (size_t at : {size_t{0}, size / 3, size / 2, size - 1}) {
      for (float bad : {std::nanf(""), -std::nanf(""), kInfinity, -kInfinity}) {
        std::vector<float> with_bad = logits;
        with_bad[at] = bad;
        EXPECT_FALSE(all_finite(with_bad)) << size << ", " << bad << " at " << at;
      }
    }
  }
  EXPECT_TRUE(all_finite({}));
}

TEST(LogitScan, LargestPassesOverNan) {
  for (size_t size : kSizes) {
    std::vector<float> logits = random_logits(size, 2);
    EXPECT_EQ(largest(logits), *std::max_element(logits.begin(), logits.end())) << size;
    for (size_t i = 0; i < size; ++i) {
      if (i != size / 2) {
        logits[i] = std::nanf("");
      }
    }
    EXPECT_EQ(largest(logits), logits[size / 2]) << size;
  }
  EXPECT_EQ(largest({}), -kInfinity);
  EXPECT_EQ(largest(std::vector<float>(20, std::nanf(""))), -kInfinity);
}

TEST(LogitScan, IndexOfLargestIsTheFirstOfEqualOnes) {
  for (size_t size : kSizes) {
    const std::vector<float> logits = random_logits(size, 3);
    const auto expected = std::max_element(logits.begin(), logits.end()) - logits.begin();
    EXPECT_EQ(index_of_largest(logits), static_cast<size_t>(expected)) << size;
    EXPECT_EQ(index_of_largest(std::vector<float>(size, -kInfinity)), 0u) << size;
    for (size_t at : {size_t{0}, size / 3, size - 1}) {
      std::vector<float> peak = logits;
      peak[at] = kInfinity;
      peak[size - 1] = kInfinity;
      EXPECT_EQ(index_of_largest(peak), at) << size;
    }
  }
}

TEST(LogitScan, ReachedByIsReachedByEnough) {
  for (size_t size : kSizes) {
    const std::vector<float> logits = random_logits(size, 4);
    for (size_t count : {0, 1, 2, 3, 10, 78, 79, 80, 5003, 100000}) {
      const float bound = reached_by(logits, count);
      const auto reaching =
          std::count_if(logits.begin(), logits.end(), [bound](float x) { return x >= bound; });
      EXPECT_GE(reaching, static_cast<std::ptrdiff_t>(std::min(count, size)))
          << size << ", " << count;
    }
    EXPECT_EQ(reached_by(logits, 1), largest(logits)) << size;
  }
  // Of 640 logits 10 are looked at, and not many of the 640 reach what they say.
  std::vector<float> ascending(640);
  for (size_t i = 0; i < ascending.size(); ++i) {
    ascending[i] = static_cast<float>(i);
  }
  EXPECT_EQ(reached_by(ascending, 2), 575.0f);
  ascending[639] = std::nanf("");
  EXPECT_EQ(reached_by(ascending, 1), 638.0f);
}

}  // namespace
}  // namespace sparsellm
