#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

const float kInfinity = std::numeric_limits<float>::infinity();

// Which ids come up in many draws.
std::set<int32_t> drawn(const std::vector<float>& logits, const SamplingParams& params,
                        std::vector<int32_t> banned = {}) {
  std::set<int32_t> ids;
  for (int64_t i = 0; i < 4000; ++i) {
    ids.insert(sample_token(logits, params, banned, 7, i));
  }
  return ids;
}

TEST(Sampler, GreedyTakesTheLargestAndTheSmallerIdOfEqualOnes) {
  EXPECT_EQ(sample_token(std::vector<float>{1.0f, 3.0f, 2.0f, 3.0f}, {}, {}, 0, 0), 1);
  EXPECT_EQ(sample_token(std::vector<float>{-kInfinity, -kInfinity}, {}, {}, 0, 0), 0);
  const std::vector<int32_t> banned{1, 3};
  EXPECT_EQ(sample_token(std::vector<float>{1.0f, 3.0f, 2.0f, 3.0f}, {}, banned, 0, 0), 2);
}

TEST(Sampler, DrawsFollowTheSoftmax) {
  const std::vector<float> logits{0.0f, 1.0f, -1.0f, 2.0f, 0.5f};
  const SamplingParams params{.temperature = 0.7f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f};
  std::vector<double> expected;
  double total = 0.0;
  for (float logit : logits) {
    expected.push_back(std::exp(static_cast<double>(logit) / 0.7));
    total += expected.back();
  }
  constexpr int kDraws = 20000;
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) {
    ++counts[static_cast<size_t>(sample_token(logits, params, {}, 99, i))];
  }
  double chi_square = 0.0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double mean = kDraws * expected[i] / total;
    chi_square += (counts[i] - mean) * (counts[i] - mean) / mean;
  }
  EXPECT_LT(chi_square, 18.5);  // 4 degrees of freedom: exceeded once in a thousand
}

TEST(Sampler, FiltersKeepWhatTheyShould) {
  // Probabilities 0.4, 0.3, 0.2, 0.1 by id.
  const std::vector<float> logits{std::log(0.4f), std::log(0.3f), std::log(0.2f), std::log(0.1f)};
  struct Case {
    SamplingParams params;
    std::set<int32_t> kept;
  };
  const std::vector<Case> cases{
      {{.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0}, {0, 1, 2, 3}},
      {{.temperature = 1, .top_k = 1, .top_p = 1, .min_p = 0}, {0}},
      {{.temperature = 1, .top_k = 3, .top_p = 1, .min_p = 0}, {0, 1, 2}},
      {{.temperature = 1, .top_k = 50, .top_p = 1, .min_p = 0}, {0, 1, 2, 3}},
      {{.temperature = 1, .top_k = 0, .top_p = 0.39f, .min_p = 0}, {0}},
      {{.temperature = 1, .top_k = 0, .top_p = 0.41f, .min_p = 0}, {0, 1}},
      {{.temperature = 1, .top_k = 0, .top_p = 0.75f, .min_p = 0}, {0, 1, 2}},
      {{.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0.3f}, {0, 1, 2}},
      {{.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0.6f}, {0, 1}},
      {{.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 1}, {0}},
      // top_p of what top_k left: 0.4 / 0.7 = 0.57.
      {{.temperature = 1, .top_k = 2, .top_p = 0.55f, .min_p = 0}, {0}},
      {{.temperature = 1, .top_k = 2, .top_p = 0.6f, .min_p = 0}, {0, 1}},
      // The temperature comes first: at 0.5 the probabilities are 16, 9, 4, 1 of 30.
      {{.temperature = 0.5f, .top_k = 0, .top_p = 0.8f, .min_p = 0}, {0, 1}},
      {{.temperature = 0.5f, .top_k = 0, .top_p = 0.9f, .min_p = 0}, {0, 1, 2}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(drawn(logits, cases[i].params), cases[i].kept) << "case " << i;
  }
  EXPECT_EQ(drawn(logits, {.temperature = 1, .top_k = 2, .top_p = 1, .min_p = 0}, {0, 2}),
            (std::set<int32_t>{1, 3}));
}

TEST(Sampler, ExtremeLogits) {
  const SamplingParams params{.temperature = 1e-6f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f};
  EXPECT_EQ(drawn({1.0f, 1.01f, 0.0f}, params), (std::set<int32_t>{1}));
  const SamplingParams hot{.temperature = 1.0f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f};
  EXPECT_EQ(drawn({kInfinity, 3.0f, kInfinity}, hot), (std::set<int32_t>{0, 2}));
  EXPECT_EQ(drawn({-kInfinity, 3.0f, -kInfinity}, hot), (std::set<int32_t>{1}));
  EXPECT_EQ(drawn({3e38f, -3e38f}, hot), (std::set<int32_t>{0}));
}

TEST(Sampler, ADrawDependsOnSeedAndIndexAlone) {
  std::vector<float> logits(1000, 0.0f);
  const SamplingParams params{.temperature = 1.0f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f};
  std::map<std::pair<uint64_t, int64_t>, int32_t> draws;
  for (uint64_t seed : {0u, 1u, 2u, 77u}) {
    for (int64_t index = 0; index < 50; ++index) {
      draws[{seed, index}] = sample_token(logits, params, {}, seed, index);
    }
  }
  std::set<int32_t> distinct;
  for (auto it = draws.rbegin(); it != draws.rend(); ++it) {
    EXPECT_EQ(sample_token(logits, params, {}, it->first.first, it->first.second), it->second);
    distinct.insert(it->second);
  }
  EXPECT_GT(distinct.size(), 150u);
}

TEST(Sampler, RefusesNanAndTotalBans) {
  const std::vector<float> with_nan{1.0f, std::nanf(""), 2.0f};
  const std::vector<int32_t> banned{0, 1};
  for (float temperature : {0.0f, 1.0f}) {
    const SamplingParams params{
        .temperature = temperature, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f};
    EXPECT_THROW(sample_token(with_nan, params, {}, 0, 0), Error);
    EXPECT_THROW(sample_token(std::vector<float>{1.0f, 2.0f}, params, banned, 0, 0), Error);
  }
}

}  // namespace
}  // namespace sparsellm
