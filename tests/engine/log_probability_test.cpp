#include "engine/log_probability.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/log_probs.h"
#include "tests/testing/reference.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

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

// All ids, the largest logit first, by selection: how often another one comes before it.
std::vector<int32_t> ranking(const std::vector<float>& logits) {
  std::vector<int32_t> ranked(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    size_t rank = 0;
    for (size_t j = 0; j < logits.size(); ++j) {
      rank += logits[j] > logits[i] || (logits[j] == logits[i] && j < i) ? 1 : 0;
    }
    ranked[rank] = static_cast<int32_t>(i);
  }
  return ranked;
}

std::vector<float> normal_logits(size_t size, float grid) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  std::vector<float> logits(size);
  for (float& logit : logits) {
    logit = normal(random);
    if (grid > 0.0f) {
      logit = grid * std::round(logit / grid);
    }
  }
  return logits;
}

std::vector<int32_t> tokens_of(const std::vector<TokenLogProb>& entries) {
  std::vector<int32_t> tokens;
  tokens.reserve(entries.size());
  for (const TokenLogProb& entry : entries) {
    tokens.push_back(entry.token);
  }
  return tokens;
}

TEST(LogProbability, MatchesDoublePrecision) {
  for (size_t size : {1u, 3u, 8u, 17u, 511u, 513u, 50257u}) {
    const std::vector<float> logits = normal_logits(size, 0.0f);
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
  for (int32_t id : {-1, 1}) {
    EXPECT_TRUE(testing::throws_error([&] { log_probability(std::vector<float>{1.0f}, id); },
                                      std::to_string(id) + " is outside the vocabulary of 1"));
  }
  EXPECT_TRUE(testing::throws_error([] { log_probability({}, 0); }, "0 is outside"));
}

TEST(LogProbability, InfiniteLogits) {
  const std::vector<float> logits{1.0f, -kInfinity, 1.0f, -kInfinity};
  EXPECT_NEAR(log_probability(logits, 0), -std::log(2.0), 1e-7);
  EXPECT_EQ(log_probability(logits, 1), -kInfinity);
  EXPECT_TRUE(std::isnan(log_probability(std::vector<float>{0.0f, kInfinity}, 0)));
  EXPECT_TRUE(std::isnan(log_probability(std::vector<float>(9, -kInfinity), 0)));
}

TEST(LogProbability, NanAnywhereMakesNan) {
  for (size_t size : {1u, 8u, 15u, 600u}) {
    for (size_t at = 0; at < size; at += 7) {
      std::vector<float> logits = normal_logits(size, 0.0f);
      logits[at] = std::nanf("");
      EXPECT_TRUE(std::isnan(log_probability(logits, 0))) << size << ", at " << at;
    }
  }
}

TEST(TokenLogProbs, MatchDoublePrecision) {
  for (float grid : {0.0f, 1.0f}) {  // without and with ties
    for (size_t size : {1u, 3u, 8u, 65u, 99u, 101u, 513u, 3000u}) {
      const std::vector<float> logits = normal_logits(size, grid);
      const std::vector<int32_t> ranked = ranking(logits);
      for (int32_t top : {0, 1, 2, 5, 20, 47, 100}) {
        const auto token = static_cast<int32_t>(size / 2);
        const TokenLogProbs result = token_log_probs(logits, token, top);
        EXPECT_EQ(result.token.token, token);
        EXPECT_EQ(result.token.log_prob, static_cast<float>(log_probability(logits, token)));
        ASSERT_EQ(result.top.size(), std::min(size, static_cast<size_t>(top)));
        for (size_t i = 0; i < result.top.size(); ++i) {
          EXPECT_EQ(result.top[i].token, ranked[i]) << size << ", " << top << ", place " << i;
          EXPECT_NEAR(result.top[i].log_prob, reference(logits, ranked[i]), 4e-6);
        }
      }
    }
  }
}

TEST(TokenLogProbs, ThatADeviceHasTold) {
  LogProbs told{.finite = 1, .token = 7, .log_prob = -0.5f};
  for (int32_t i = 0; i < kMaxDeviceLogProbs; ++i) {
    told.top_tokens[i] = 100 + i;
    told.top_log_probs[i] = -1.0f - static_cast<float>(i);
  }
  for (const auto& [top, vocabulary, count] :
       {std::tuple<int32_t, int64_t, size_t>{0, 50, 0}, {3, 50, 3}, {20, 50, 20}, {20, 8, 8}}) {
    const TokenLogProbs result = token_log_probs(told, top, vocabulary);
    EXPECT_EQ(result.token.token, 7);
    EXPECT_EQ(result.token.log_prob, -0.5f);
    ASSERT_EQ(result.top.size(), count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(result.top[i].token, 100 + static_cast<int32_t>(i));
      EXPECT_EQ(result.top[i].log_prob, -1.0f - static_cast<float>(i));
    }
  }
}

TEST(TokenLogProbs, EqualLogitsComeInTheOrderOfTheIds) {
  const TokenLogProbs all_equal = token_log_probs(std::vector<float>(1000, 2.5f), 999, 4);
  EXPECT_EQ(tokens_of(all_equal.top), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_NEAR(all_equal.top[3].log_prob, -std::log(1000.0), 1e-5);
  EXPECT_EQ(all_equal.token.log_prob, all_equal.top[0].log_prob);
  const std::vector<float> some{1.0f, 3.0f, -0.0f, 3.0f, 0.0f, 1.0f};
  EXPECT_EQ(tokens_of(token_log_probs(some, 0, 100).top), (std::vector<int32_t>{1, 3, 0, 5, 2, 4}));
}

TEST(TokenLogProbs, InfiniteAndNanLogits) {
  const std::vector<float> forbidden{-kInfinity, 0.0f, -kInfinity, 1.0f};
  const TokenLogProbs result = token_log_probs(forbidden, 2, 4);
  EXPECT_EQ(tokens_of(result.top), (std::vector<int32_t>{3, 1, 0, 2}));
  EXPECT_EQ(result.token.log_prob, -kInfinity);
  EXPECT_EQ(result.top[3].log_prob, -kInfinity);

  std::vector<float> logits = normal_logits(700, 1.0f);
  for (size_t i = 0; i < logits.size(); ++i) {
    if (i % 3 == 0) {
      logits[i] = i % 2 == 0 ? std::nanf("") : -std::nanf("");
    }
  }
  for (const std::vector<float>& with_nan : {logits, std::vector<float>{std::nanf(""), 1.0f, 2.0f},
                                             std::vector<float>(300, std::nanf(""))}) {
    const TokenLogProbs all_nan = token_log_probs(with_nan, 1, 100);
    EXPECT_TRUE(std::isnan(all_nan.token.log_prob));
    EXPECT_EQ(all_nan.top.size(), std::min(with_nan.size(), size_t{100}));
    for (const TokenLogProb& entry : all_nan.top) {
      EXPECT_TRUE(std::isnan(entry.log_prob));
    }
  }
  EXPECT_EQ(tokens_of(token_log_probs(std::vector<float>{std::nanf(""), 1, 2}, 1, 3).top),
            (std::vector<int32_t>{2, 1, 0}));
}

TEST(TokenLogProbs, Errors) {
  const std::vector<float> logits{1.0f, 2.0f};
  for (int32_t token : {-1, 2, 2147483647}) {
    EXPECT_TRUE(testing::throws_error([&] { token_log_probs(logits, token, 1); },
                                      std::to_string(token) + " is outside the vocabulary of 2"));
  }
  for (int32_t top : {-1, 101, 2147483647, -2147483647 - 1}) {
    EXPECT_TRUE(testing::throws_error([&] { token_log_probs(logits, 0, top); },
                                      std::to_string(top) + " log-probabilities"));
  }
}

// The five largest logits that the checkpoints' reference implementation found after each prompt.
TEST(TokenLogProbs, RankAsTheCheckpointsReferences) {
  constexpr size_t kVocabulary = 4096;  // of the checkpoints that store no more than five
  for (const std::filesystem::path& directory : testing::all_checkpoints()) {
    for (const testing::Reference::Greedy& entry : testing::read_reference(directory).greedy) {
      std::vector<float> logits = entry.last_logits;
      if (logits.empty()) {  // not stored: only what is above the rest is known
        logits.assign(kVocabulary, entry.top5_logits.back() - 1.0f);
        for (size_t i = 0; i < entry.top5_ids.size(); ++i) {
          logits.at(static_cast<size_t>(entry.top5_ids[i])) = entry.top5_logits[i];
        }
      }
      const TokenLogProbs result = token_log_probs(logits, entry.output_ids.at(0), 5);
      EXPECT_EQ(tokens_of(result.top), entry.top5_ids) << directory;
      EXPECT_EQ(result.token.log_prob, result.top[0].log_prob) << directory;
      for (size_t i = 1; i < entry.top5_logits.size(); ++i) {
        EXPECT_NEAR(result.top[i].log_prob - result.top[0].log_prob,
                    entry.top5_logits[i] - entry.top5_logits[0], 1e-5)
            << directory;
      }
    }
  }
}

}  // namespace
}  // namespace sparsellm
