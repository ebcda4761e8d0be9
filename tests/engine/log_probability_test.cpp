#include "engine/log_probability.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

double reference(const std::vector<float>& logits, int32_t id) {
  double largest = -std::numeric_limits<double>::infinity();
  for (float logit : logits) {
    largest = std::max(largest, static_cast<double>(logit));
  }
  double total = 0.0;
  for (float logit : logits) {
    total += std::exp(static_cast<double>(logit) - largest);
  }
  return logits[static_cast<size_t>(id)] - largest - std::log(total);
}

TEST(LogProbability, MatchesDoublePrecision) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  for (size_t size : {1u, 3u, 8u, 17u, 511u, 513u, 50257u}) {
    std::vector<float> logits(size);
    for (float& logit : logits) {
      logit = normal(random);
    }
    for (size_t id : {size_t{0}, size / 2, size - 1}) {
      const auto token = static_cast<int32_t>(id);
      EXPECT_NEAR(log_probability(logits, token), reference(logits, token), 2e-6);
    }
  }
}

TEST(LogProbability, LargeLogitsAndErrors) {
  EXPECT_NEAR(log_probability(std::vector<float>{1e30f, 0.0f}, 0), 0.0, 1e-12);
  EXPECT_NEAR(log_probability(std::vector<float>(1024, -3e38f), 5), -std::log(1024.0), 1e-6);
  EXPECT_TRUE(std::isnan(log_probability(std::vector<float>{1.0f, std::nanf("")}, 0)));
  EXPECT_THROW(log_probability(std::vector<float>{1.0f}, 1), Error);
  EXPECT_THROW(log_probability(std::vector<float>{1.0f}, -1), Error);
}

}  // namespace
}  // namespace sparsellm
