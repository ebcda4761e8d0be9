#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

const float kInfinity = std::numeric_limits<float>::infinity();
const float kMax = std::numeric_limits<float>::max();

SamplingParams filters(float temperature, int32_t top_k, float top_p, float min_p) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  params.min_p = min_p;
  return params;
}

SamplingParams temperature(float value) { return filters(value, 0, 1.0f, 0.0f); }

// The index-th draw of a stream of draws from the same logits.
int32_t sample_at(const std::vector<float>& logits, const SamplingParams& params,
                  std::span<const int32_t> banned, uint64_t seed, int64_t index) {
  return sample_token(logits, params, {}, banned, seed, index);
}

// Which ids come up in many draws.
std::set<int32_t> drawn(const std::vector<float>& logits, const SamplingParams& params,
                        std::vector<int32_t> banned = {}) {
  std::set<int32_t> ids;
  for (int64_t i = 0; i < 4000; ++i) {
    ids.insert(sample_at(logits, params, banned, 7, i));
  }
  return ids;
}

TEST(Sampler, GreedyTakesTheLargestAndTheSmallerIdOfEqualOnes) {
  EXPECT_EQ(sample_at(std::vector<float>{1.0f, 3.0f, 2.0f, 3.0f}, {}, {}, 0, 0), 1);
  EXPECT_EQ(sample_at(std::vector<float>{-kMax, -kMax}, {}, {}, 0, 0), 0);
  const std::vector<int32_t> banned{1, 3};
  EXPECT_EQ(sample_at(std::vector<float>{1.0f, 3.0f, 2.0f, 3.0f}, {}, banned, 0, 0), 2);
}

TEST(Sampler, FiltersKeepWhatTheyShould) {
  // Probabilities 0.4, 0.3, 0.2, 0.1 by id.
  const std::vector<float> logits{std::log(0.4f), std::log(0.3f), std::log(0.2f), std::log(0.1f)};
  struct Case {
    SamplingParams params;
    std::set<int32_t> kept;
  };
  const std::vector<Case> cases{
      {filters(1, 0, 1, 0), {0, 1, 2, 3}},
      {filters(1, 1, 1, 0), {0}},
      {filters(1, 3, 1, 0), {0, 1, 2}},
      {filters(1, 50, 1, 0), {0, 1, 2, 3}},
      {filters(1, 0, 0.39f, 0), {0}},
      {filters(1, 0, 0.41f, 0), {0, 1}},
      {filters(1, 0, 0.75f, 0), {0, 1, 2}},
      {filters(1, 0, 1, 0.3f), {0, 1, 2}},
      {filters(1, 0, 1, 0.6f), {0, 1}},
      {filters(1, 0, 1, 1), {0}},
      // top_p of what top_k left: 0.4 / 0.7 = 0.57.
      {filters(1, 2, 0.55f, 0), {0}},
      {filters(1, 2, 0.6f, 0), {0, 1}},
      // The temperature comes first: at 0.5 the probabilities are 16, 9, 4, 1 of 30.
      {filters(0.5f, 0, 0.8f, 0), {0, 1}},
      {filters(0.5f, 0, 0.9f, 0), {0, 1, 2}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(drawn(logits, cases[i].params), cases[i].kept) << "case " << i;
  }
  EXPECT_EQ(drawn(logits, filters(1, 2, 1, 0), {0, 2}), (std::set<int32_t>{1, 3}));
}

TEST(Sampler, FiltersOfEqualLogits) {
  const std::vector<float> logits(4, -1.5f);
  EXPECT_EQ(drawn(logits, filters(1, 3, 1, 0)), (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(drawn(logits, filters(1, 0, 0.25f, 0)), (std::set<int32_t>{0}));
  EXPECT_EQ(drawn(logits, filters(1, 0, 0.5f, 0)), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(drawn(logits, filters(1, 0, 0.51f, 0)), (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(drawn(logits, filters(1, 0, 1, 1)), (std::set<int32_t>{0, 1, 2, 3}));
}

TEST(Sampler, TopKCountsAllowedIdsAlone) {
  std::vector<float> logits(700, 0.0f);
  logits[10] = 5.0f;
  logits[100] = 4.9f;
  logits[200] = 4.8f;
  logits[300] = 4.7f;
  EXPECT_EQ(drawn(logits, filters(1, 2, 1, 0)), (std::set<int32_t>{10, 100}));
  EXPECT_EQ(drawn(logits, filters(1, 2, 1, 0), {10, 100}), (std::set<int32_t>{200, 300}));
  EXPECT_EQ(drawn(logits, filters(4, 3, 1, 0), {100, 10, 300}), (std::set<int32_t>{0, 1, 200}));
}

TEST(Sampler, ExtremeLogits) {
  const SamplingParams params = temperature(1e-6f);
  EXPECT_EQ(drawn({1.0f, 1.01f, 0.0f}, params), (std::set<int32_t>{1}));
  const SamplingParams hot = temperature(1.0f);
  EXPECT_EQ(drawn({kMax, 3.0f, kMax}, hot), (std::set<int32_t>{0, 2}));
  EXPECT_EQ(drawn({-kMax, 3.0f, -kMax}, hot), (std::set<int32_t>{1}));
  EXPECT_EQ(drawn({1.0f, 1.0f, 0.0f}, temperature(1e-45f)), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(drawn({3e38f, -3e38f}, hot), (std::set<int32_t>{0}));
}

TEST(Sampler, ADrawDependsOnSeedAndIndexAlone) {
  std::vector<float> logits(1000, 0.0f);
  const SamplingParams params = temperature(1.0f);
  std::map<std::pair<uint64_t, int64_t>, int32_t> draws;
  for (uint64_t seed : {0u, 1u, 2u, 77u}) {
    for (int64_t index = 0; index < 50; ++index) {
      draws[{seed, index}] = sample_at(logits, params, {}, seed, index);
    }
  }
  std::set<int32_t> distinct;
  for (auto it = draws.rbegin(); it != draws.rend(); ++it) {
    EXPECT_EQ(sample_at(logits, params, {}, it->first.first, it->first.second), it->second);
    distinct.insert(it->second);
  }
  EXPECT_GT(distinct.size(), 150u);
}

// A seed's text stays the same from version to version.
TEST(Sampler, DrawsOfASeedStay) {
  std::vector<float> logits;
  logits.reserve(200);
  for (int i = 0; i < 200; ++i) {
    logits.push_back(0.0625f * static_cast<float>(i * 37 % 101));
  }
  struct Case {
    SamplingParams params;
    std::vector<int32_t> draws;
  };
  const std::vector<Case> cases{
      {temperature(1.0f), {95, 120, 8, 139, 60, 30, 8, 191, 103, 90, 46, 8}},
      {filters(1.0f, 20, 1.0f, 0.0f), {98, 120, 8, 139, 60, 30, 8, 191, 109, 90, 49, 8}},
      {filters(1.0f, 0, 0.75f, 0.0f), {98, 120, 8, 139, 60, 30, 8, 191, 106, 90, 46, 8}},
      {filters(1.0f, 0, 1.0f, 0.5f), {98, 120, 8, 139, 60, 30, 8, 191, 109, 90, 49, 8}},
      {filters(1.5f, 50, 0.875f, 0.25f), {95, 120, 8, 139, 60, 30, 8, 191, 98, 90, 46, 8}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    std::vector<int32_t> draws;
    for (int64_t index = 0; index < 12; ++index) {
      draws.push_back(sample_at(logits, cases[i].params, {}, 1234, index));
    }
    EXPECT_EQ(draws, cases[i].draws) << "case " << i;
  }
}

TEST(Sampler, GreedyIsTheFirstOfTheLargestAllowedOnes) {
  std::mt19937 random(5);
  for (size_t size : {1u, 2u, 9u, 64u, 1025u, 5000u}) {
    for (int round = 0; round < 40; ++round) {
      std::vector<float> logits(size);
      for (float& logit : logits) {
        logit = round == 0 ? -kMax : static_cast<float>(random() % 6) - 4.0f;
      }
      std::vector<int32_t> banned;  // with repetitions and ids outside the vocabulary
      banned.reserve(static_cast<size_t>(round));
      for (int i = 0; i < round; ++i) {
        banned.push_back(static_cast<int32_t>(random() % (size + 4)) - 2);
      }
      int32_t expected = -1;
      for (int32_t id = 0; id < static_cast<int32_t>(size); ++id) {
        const bool allowed = std::count(banned.begin(), banned.end(), id) == 0;
        if (allowed && (expected < 0 ||
                        logits[static_cast<size_t>(id)] > logits[static_cast<size_t>(expected)])) {
          expected = id;
        }
      }
      if (expected >= 0) {
        EXPECT_EQ(sample_at(logits, {}, banned, 0, 0), expected) << size << ", round " << round;
      }
    }
  }
}

// The ids by their adjusted logits: what is greedily chosen while all chosen before are banned.
std::vector<int32_t> greedy_ranking(const std::vector<float>& logits, const SamplingParams& params,
                                    const TokenHistory& history) {
  std::vector<int32_t> chosen;
  while (chosen.size() < logits.size()) {
    chosen.push_back(sample_token(logits, params, history, chosen, 0, 0));
  }
  return chosen;
}

TEST(Sampler, GreedyTakesThePenalizedLogits) {
  const std::vector<float> logits{2.0f, -1.0f, 0.5f, 0.0f, 3.0f};
  const std::vector<int32_t> tokens{0, 1, 0, 3, 0};
  const TokenHistory history{.tokens = tokens, .prompt_length = 2};
  SamplingParams params;
  EXPECT_EQ(greedy_ranking(logits, params, history), (std::vector<int32_t>{4, 0, 2, 3, 1}));
  params.frequency_penalty = 0.875f;  // 0.25, -1, 0.5, -0.875, 3
  EXPECT_EQ(greedy_ranking(logits, params, history), (std::vector<int32_t>{4, 2, 0, 3, 1}));
  params.presence_penalty = 0.5f;  // -0.25, -1, 0.5, -1.375, 3
  EXPECT_EQ(greedy_ranking(logits, params, history), (std::vector<int32_t>{4, 2, 0, 1, 3}));
  params.repetition_penalty = 2.0f;  // -1.25, -2, 0.5, -1.375, 3
  EXPECT_EQ(greedy_ranking(logits, params, history), (std::vector<int32_t>{4, 2, 0, 3, 1}));
  params.logit_bias = {{0, 8.5f}, {4, -4.5f}};  // 3, -2, 0.5, -1.375, -1.5
  EXPECT_EQ(greedy_ranking(logits, params, history), (std::vector<int32_t>{0, 2, 3, 4, 1}));
}

TEST(Sampler, OverflowingPenaltiesLeaveAChoice) {
  const float max = kMax;
  const std::vector<int32_t> tokens{0, 0};
  const TokenHistory history{.tokens = tokens, .prompt_length = 0};
  for (float degree : {0.0f, 1.0f}) {
    SamplingParams params = temperature(degree);
    params.frequency_penalty = max;
    params.presence_penalty = max;
    EXPECT_EQ(sample_token(std::vector<float>{1.0f, -1e30f}, params, history, {}, 1, 0), 1);
    params.logit_bias = {{1, -kInfinity}};
    // Pushed down as far as it goes, but the other one is forbidden.
    EXPECT_EQ(sample_token(std::vector<float>{1.0f, -1e30f}, params, history, {}, 1, 0), 0);
  }
}

TEST(Sampler, ValidateNamesTheValue) {
  using Change = std::function<void(SamplingParams&)>;
  const float max = kMax;
  const std::vector<Change> valid{
      [](SamplingParams&) {},
      [&](SamplingParams& p) { p.temperature = max; },
      [](SamplingParams& p) { p.top_k = 2147483647; },
      [](SamplingParams& p) { p.top_p = 1e-30f; },
      [](SamplingParams& p) { p.min_p = 1.0f; },
      [](SamplingParams& p) { p.repetition_penalty = 1e-40f; },
      [&](SamplingParams& p) { p.repetition_penalty = max; },
      [&](SamplingParams& p) { p.frequency_penalty = -max; },
      [&](SamplingParams& p) { p.presence_penalty = -max; },
      [&](SamplingParams& p) {
        p.logit_bias = {{0, max}, {2, -max}, {1, 0.0f}, {-1, 1.0f}};
      },
  };
  for (size_t i = 0; i < valid.size(); ++i) {
    SamplingParams params;
    valid[i](params);
    EXPECT_NO_THROW(validate(params)) << "case " << i;
  }
  struct Invalid {
    Change change;
    std::string_view message;
  };
  const std::vector<Invalid> invalid{
      {[](SamplingParams& p) { p.temperature = -0.5f; }, "temperature -0.5 is"},
      {[](SamplingParams& p) { p.temperature = kInfinity; }, "temperature inf"},
      {[](SamplingParams& p) { p.temperature = std::nanf(""); }, "temperature nan"},
      {[](SamplingParams& p) { p.top_k = -3; }, "top_k -3"},
      {[](SamplingParams& p) { p.top_p = 0.0f; }, "top_p 0"},
      {[](SamplingParams& p) { p.top_p = 1.5f; }, "top_p 1.5"},
      {[](SamplingParams& p) { p.top_p = std::nanf(""); }, "top_p nan"},
      {[](SamplingParams& p) { p.min_p = -0.25f; }, "min_p -0.25"},
      {[](SamplingParams& p) { p.min_p = 1.5f; }, "min_p 1.5"},
      {[](SamplingParams& p) { p.min_p = std::nanf(""); }, "min_p nan"},
      {[](SamplingParams& p) { p.repetition_penalty = 0.0f; }, "repetition_penalty 0"},
      {[](SamplingParams& p) { p.repetition_penalty = -1.5f; }, "repetition_penalty -1.5"},
      {[](SamplingParams& p) { p.repetition_penalty = kInfinity; }, "repetition_penalty inf"},
      {[](SamplingParams& p) { p.repetition_penalty = std::nanf(""); }, "repetition_penalty nan"},
      {[](SamplingParams& p) { p.frequency_penalty = -kInfinity; }, "frequency_penalty -inf"},
      {[](SamplingParams& p) { p.frequency_penalty = std::nanf(""); }, "frequency_penalty nan"},
      {[](SamplingParams& p) { p.presence_penalty = kInfinity; }, "presence_penalty inf"},
      {[](SamplingParams& p) { p.presence_penalty = std::nanf(""); }, "presence_penalty nan"},
      {[](SamplingParams& p) {
         p.logit_bias = {{4, 1.0f}, {3, -kInfinity}, {5, kInfinity}};
       },
       "logit_bias inf of token 5"},
      {[](SamplingParams& p) {
         p.logit_bias = {{4, std::nanf("")}};
       },
       "logit_bias nan of token 4"},
      {[](SamplingParams& p) {
         p.logit_bias = {{9, 1.0f}, {4, 1.0f}, {9, 1.0f}};
       },
       "logit_bias has token 9 twice"},
  };
  for (const Invalid& entry : invalid) {
    SamplingParams params;
    entry.change(params);
    EXPECT_TRUE(testing::throws_error([&] { validate(params); }, entry.message));
  }
}

TEST(Sampler, SeedsOfSamplesAreDistinct) {
  std::set<uint64_t> seeds;
  for (uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{2}, ~uint64_t{0}}) {
    EXPECT_EQ(sample_seed(seed, 0), seed);
    for (int32_t sample = 0; sample < 1000; ++sample) {
      seeds.insert(sample_seed(seed, sample));
    }
  }
  EXPECT_EQ(seeds.size(), 4000u);
}

TEST(Sampler, DrawsOfSamplesAreUncorrelated) {
  constexpr int kIds = 100;
  constexpr int kDraws = 2500;
  const std::vector<float> logits(kIds, 0.0f);
  std::vector<std::vector<double>> centred;
  for (uint64_t request : {7u, 8u}) {
    for (int32_t sample = 0; sample < 5; ++sample) {
      std::vector<double>& draws = centred.emplace_back();
      for (int i = 0; i < kDraws; ++i) {
        draws.push_back(sample_at(logits, temperature(1.0f), {}, sample_seed(request, sample), i) -
                        (kIds - 1) / 2.0);
      }
    }
  }
  const double variance = (kIds * kIds - 1) / 12.0;
  for (size_t a = 0; a < centred.size(); ++a) {
    for (size_t b = a; b < centred.size(); ++b) {
      for (size_t lag : {0u, 1u, 2u}) {
        double covariance = 0.0;
        for (size_t i = lag; i < kDraws; ++i) {
          covariance += centred[a][i] * centred[b][i - lag] / kDraws;
        }
        const double expected = a == b && lag == 0 ? 1.0 : 0.0;
        EXPECT_NEAR(covariance / variance, expected, 4.5 / std::sqrt(kDraws))
            << a << ", " << b << ", lag " << lag;
      }
    }
  }
}

TEST(Sampler, RefusesLogitsThatAreNotFinite) {
  for (const SamplingParams& params : {temperature(0.0f), temperature(1.0f), filters(1, 1, 1, 0)}) {
    for (size_t size : {1u, 8u, 30u, 2000u}) {
      for (float bad : {std::nanf(""), kInfinity, -kInfinity}) {
        for (size_t at : {size_t{0}, size - 1 - size / 3, size - 1}) {
          std::vector<float> logits(size, 1.0f);
          logits[at] = bad;
          EXPECT_TRUE(testing::throws_error([&] { sample_at(logits, params, {}, 0, 0); },
                                            "the model's logits contain NaN or infinity"));
          // Even where that token is not to be chosen.
          const auto id = static_cast<int32_t>(at);
          EXPECT_THROW(sample_at(logits, params, std::vector<int32_t>{id}, 0, 0), Error);
          SamplingParams forbidden = params;
          forbidden.logit_bias = {{id, -kInfinity}};
          EXPECT_THROW(sample_at(logits, forbidden, {}, 0, 0), Error);
        }
      }
    }
  }
}

TEST(Sampler, ABiasOfMinusInfinityForbidsAToken) {
  for (SamplingParams params : {temperature(0.0f), temperature(1.0f), filters(1, 3, 1, 0),
                                filters(1, 0, 0.5f, 0), filters(1, 0, 1, 0.1f)}) {
    params.logit_bias = {{0, -kInfinity}, {2, -kInfinity}};
    validate(params);
    EXPECT_EQ(drawn({9.0f, 0.0f, 9.0f}, params), (std::set<int32_t>{1}));
    EXPECT_TRUE(testing::throws_error(
        [&] {
          sample_at(std::vector<float>{9.0f, 0.0f, 9.0f}, params, std::vector<int32_t>{1}, 0, 0);
        },
        "every token is banned"));
  }
}

TEST(Sampler, RefusesTotalBans) {
  const std::vector<int32_t> banned{1, 0, 1};
  for (float degree : {0.0f, 1.0f}) {
    const SamplingParams params = temperature(degree);
    EXPECT_TRUE(testing::throws_error(
        [&] {
          sample_at(std::vector<float>{1.0f, 2.0f}, params, banned, 0, 0);
        },
        "banned"));
    EXPECT_THROW(sample_at({}, params, {}, 0, 0), Error);
  }
}

TEST(Sampler, RefusesAPromptLongerThanTheHistory) {
  const std::vector<float> logits{1.0f, 2.0f};
  const std::vector<int32_t> tokens{0, 1};
  for (int64_t prompt_length : {-1, 3}) {
    const TokenHistory history{.tokens = tokens, .prompt_length = prompt_length};
    EXPECT_TRUE(testing::throws_error([&] { sample_token(logits, {}, history, {}, 0, 0); },
                                      std::to_string(prompt_length) + " is not in [0, 2]"));
  }
}

// What the caller did not validate gives an Error, not an undefined order.
TEST(Sampler, RefusesABiasThatMakesNanOrInfinity) {
  for (SamplingParams params : {temperature(0.0f), filters(1.0f, 2, 0.5f, 0.0f)}) {
    for (float bias : {std::nanf(""), kInfinity}) {
      params.logit_bias = {{0, bias}};
      EXPECT_THROW(sample_at({0.0f, 1.0f, 2.0f}, params, {}, 0, 0), Error);
    }
  }
}

}  // namespace
}  // namespace sparsellm
