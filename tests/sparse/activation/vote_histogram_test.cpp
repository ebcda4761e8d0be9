#include "sparse/activation/vote_histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "sparse/activation/sign_predictor.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

struct Neurons {
  std::vector<int32_t> negative;
  std::vector<int32_t> positive;
  std::vector<uint8_t> active;

  void add(int32_t n, int32_t p, bool is_active) {
    negative.push_back(n);
    positive.push_back(p);
    active.push_back(is_active ? 7 : 0);
  }
};

VoteHistogram counted(const Neurons& neurons,
                      std::vector<float> alphas = VoteHistogram::default_alphas()) {
  VoteHistogram histogram(std::move(alphas));
  histogram.add(neurons.negative, neurons.positive, neurons.active);
  return histogram;
}

struct Counts {
  int64_t zeros = 0;
  int64_t active = 0;
  int64_t skipped = 0;
  int64_t missed = 0;
};

// Neuron by neuron.
Counts count(const Neurons& neurons, float alpha) {
  Counts counts;
  for (size_t i = 0; i < neurons.active.size(); ++i) {
    const float product = alpha * static_cast<float>(neurons.positive[i]);
    const bool is_skipped = product < static_cast<float>(neurons.negative[i]);
    const bool is_active = neurons.active[i] != 0;
    counts.zeros += is_active ? 0 : 1;
    counts.active += is_active ? 1 : 0;
    counts.skipped += is_skipped ? 1 : 0;
    counts.missed += is_skipped && is_active ? 1 : 0;
  }
  return counts;
}

void expect_counts(const VoteHistogram& histogram, const Neurons& neurons, float alpha) {
  SCOPED_TRACE(alpha);
  const Counts counts = count(neurons, alpha);
  EXPECT_EQ(histogram.zeros(), counts.zeros);
  EXPECT_EQ(histogram.active(), counts.active);
  EXPECT_EQ(histogram.skipped(alpha), counts.skipped);
  EXPECT_EQ(histogram.missed(alpha), counts.missed);
  const auto share = [](int64_t part, int64_t whole, double of_nothing) {
    return whole == 0 ? of_nothing : static_cast<double>(part) / static_cast<double>(whole);
  };
  const int64_t hits = counts.skipped - counts.missed;
  EXPECT_EQ(histogram.missed_share(alpha), share(counts.missed, counts.active, 0.0));
  EXPECT_EQ(histogram.precision(alpha), share(hits, counts.skipped, 1.0));
  EXPECT_EQ(histogram.recall(alpha), share(hits, counts.zeros, 1.0));
}

// Votes about the border, which are rounded when they are multiplied, and everything else.
Neurons random_neurons(int64_t size, double active_share, Random& random) {
  Neurons neurons;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t largest = int64_t{1} << (1 + random.below(24));
    const auto positive = static_cast<int32_t>(random.below(std::min(largest, int64_t{15} << 20)));
    const double ratio = random.below(2) == 0 ? std::exp2(random.uniform(-0.1, 0.1))
                                              : std::exp2(random.uniform(-3.0, 3.0));
    const auto negative =
        static_cast<int32_t>(std::min(positive * ratio, static_cast<double>(15 << 20)));
    neurons.add(random.below(20) == 0 ? 0 : negative, random.below(20) == 0 ? 0 : positive,
                random.uniform(0.0, 1.0) < active_share);
  }
  return neurons;
}

TEST(VoteHistogram, CountsAsThePredictorSkips) {
  Random random(31);
  for (const double active_share : {0.0, 0.1, 0.5, 1.0}) {
    const Neurons neurons = random_neurons(3000, active_share, random);
    const VoteHistogram histogram = counted(neurons);
    for (size_t i = 0; i < histogram.alphas().size(); i += 97) {
      expect_counts(histogram, neurons, histogram.alphas()[i]);
    }
    expect_counts(histogram, neurons, 1.0f);
    const std::vector<float> few{1e-30f, 0.98f, 1.0f, 1.02f, 1.0f + 0x1p-20f, 3e30f};
    std::vector<float> sorted = few;
    std::sort(sorted.begin(), sorted.end());
    for (float alpha : few) {
      expect_counts(counted(neurons, sorted), neurons, alpha);
      expect_counts(counted(neurons, {alpha}), neurons, alpha);
    }
  }
}

// Next to each place where alpha * positive is as large as negative.
TEST(VoteHistogram, IsExactAtTheBorder) {
  Random random(32);
  for (int i = 0; i < 300; ++i) {
    const auto positive = static_cast<int32_t>(1 + random.below(15 << 20));
    const auto negative = static_cast<int32_t>(1 + random.below(15 << 20));
    const float border = static_cast<float>(negative) / static_cast<float>(positive);
    const float below = std::nextafter(border, 0.0f);
    const float above = std::nextafter(border, 2.0f * border);
    Neurons neurons;
    neurons.add(negative, positive, i % 2 == 0);
    const VoteHistogram histogram = counted(neurons, {below, border, above});
    for (float alpha : {below, border, above}) {
      expect_counts(histogram, neurons, alpha);
    }
  }
}

TEST(VoteHistogram, HasWhatThePredictorSkips) {
  Random random(33);
  CpuContext cpu;
  constexpr int64_t kTokens = 9;
  constexpr int64_t kRows = 67;
  const GuardedTensor x = random.tensor(DType::f32, {kTokens, 70});
  const GuardedTensor w = random.tensor(DType::f16, {kRows, 70});
  const OwnedSignWords words = pack_sign_words(w.view(), cpu.threads);
  const GuardedTensor negative(DType::i32, {kTokens, kRows});
  const GuardedTensor positive(DType::i32, {kTokens, kRows});
  const GuardedTensor active(DType::u8, {kTokens, kRows});
  for (const Votes votes : {Votes::sign, Votes::weighted}) {
    count_votes(x.view(), words.view(), votes, negative.view(), positive.view(), cpu.exec);
    VoteHistogram histogram;
    const std::vector<uint8_t> all_active(kRows, 1);
    for (int64_t t = 0; t < kTokens; ++t) {
      histogram.add({negative.view().row<int32_t>(t), kRows},
                    {positive.view().row<int32_t>(t), kRows}, all_active);
    }
    for (size_t i = 0; i < histogram.alphas().size(); i += 101) {
      const float alpha = histogram.alphas()[i];
      predict_active(x.view(), words.view(), {.votes = votes, .alpha = alpha}, active.view(),
                     cpu.exec);
      const std::vector<double> flags = values_of(active.view());
      EXPECT_EQ(histogram.skipped(alpha), std::count(flags.begin(), flags.end(), 0.0)) << alpha;
    }
    EXPECT_GT(histogram.skipped(1.0f), 0);
    EXPECT_LT(histogram.skipped(1.0f), kTokens * kRows);
  }
}

TEST(VoteHistogram, PartsAddUpInAnyOrder) {
  Random random(34);
  const Neurons a = random_neurons(500, 0.3, random);
  const Neurons b = random_neurons(700, 0.1, random);
  VoteHistogram together = counted(a);
  together.add(b.negative, b.positive, b.active);
  VoteHistogram merged = counted(b);
  merged.add(counted(a));
  merged.add(VoteHistogram());
  EXPECT_EQ(together.zeros(), merged.zeros());
  EXPECT_EQ(together.active(), merged.active());
  for (float alpha : together.alphas()) {
    ASSERT_EQ(together.skipped(alpha), merged.skipped(alpha));
    ASSERT_EQ(together.missed(alpha), merged.missed(alpha));
  }
}

// The definition: of all alphas of the grid, tried one by one.
std::optional<float> naive_alpha(const VoteHistogram& histogram, double share) {
  for (float alpha : histogram.alphas()) {
    if (histogram.missed_share(alpha) <= share) {
      return alpha;
    }
  }
  return {};
}

TEST(VoteHistogram, TheSmallestAlphaThatMissesNoMore) {
  Random random(35);
  for (const double active_share : {0.02, 0.5, 1.0}) {
    Neurons neurons;
    for (int i = 0; i < 4000; ++i) {
      const bool is_active = random.uniform(0.0, 1.0) < active_share;
      const double votes = random.uniform(0.0, 60.0) + (is_active ? 0.0 : 30.0);
      neurons.add(static_cast<int32_t>(votes), static_cast<int32_t>(100.0 - votes), is_active);
    }
    const VoteHistogram histogram = counted(neurons);
    double previous = 5.0;
    for (const double share : {0.0, 0.001, 0.01, 0.1, 0.3, 0.999, 1.0}) {
      const std::optional<float> alpha = histogram.alpha_for_missed_share(share);
      ASSERT_TRUE(alpha) << share;
      EXPECT_EQ(alpha, naive_alpha(histogram, share));
      EXPECT_LE(*alpha, previous);
      previous = *alpha;
    }
    EXPECT_EQ(previous, 0.25f);
  }
}

TEST(VoteHistogram, OfOneNeuron) {
  struct Case {
    int32_t negative;
    int32_t positive;
    bool active;
    std::optional<float> alpha_for_none;  // that may be missed
  };
  const float smallest = 0.25f;
  const std::vector<Case> cases{
      {10, 10, true, 1.0f},         // skipped below 1
      {0, 10, true, smallest},      // never skipped
      {0, 0, true, smallest},       // likewise
      {10, 0, true, std::nullopt},  // always skipped
      {1000, 1, true, std::nullopt}, {1, 1000, true, smallest},
      {10, 0, false, smallest},  // which misses nothing
      {0, 0, false, smallest},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(fmt::format("{} to {}", c.negative, c.positive));
    Neurons neurons;
    neurons.add(c.negative, c.positive, c.active);
    const VoteHistogram histogram = counted(neurons);
    EXPECT_EQ(histogram.alpha_for_missed_share(0.0), c.alpha_for_none);
    EXPECT_EQ(histogram.alpha_for_missed_share(0.99), c.alpha_for_none);
    EXPECT_EQ(histogram.alpha_for_missed_share(1.0), smallest);
  }
}

TEST(VoteHistogram, OfNothing) {
  VoteHistogram histogram;
  histogram.add({}, {}, {});
  expect_counts(histogram, {}, 1.0f);
  EXPECT_FALSE(histogram.alpha_for_missed_share(0.0));
  EXPECT_FALSE(histogram.alpha_for_missed_share(1.0));
}

TEST(VoteHistogram, TheDefaultGrid) {
  const std::vector<float> alphas = VoteHistogram::default_alphas();
  EXPECT_EQ(alphas.size(), 4097u);
  EXPECT_EQ(alphas.front(), 0.25f);
  EXPECT_EQ(alphas[2048], 1.0f);
  EXPECT_EQ(alphas.back(), 4.0f);
  for (size_t i = 1; i < alphas.size(); ++i) {
    EXPECT_NEAR(alphas[i] / alphas[i - 1], 1.000677, 1e-6);
  }
}

TEST(VoteHistogram, RefusesWhatDoesNotFit) {
  const auto refuses = [](std::vector<float> alphas, std::string_view why) {
    EXPECT_TRUE(throws_error([&] { VoteHistogram{alphas}; }, why));
  };
  refuses({}, "for no alpha");
  refuses({0.0f, 1.0f}, "alpha 0 comes after 0; expected finite numbers above 0, ascending");
  refuses({-1.0f}, "alpha -1");
  refuses({1.0f, 1.0f}, "alpha 1 comes after 1");
  refuses({1.0f, 0.5f}, "alpha 0.5 comes after 1");
  refuses({1.0f, std::numeric_limits<float>::infinity()}, "alpha inf");
  refuses({std::numeric_limits<float>::quiet_NaN(), 1.0f}, "alpha nan");

  VoteHistogram histogram({0.5f, 1.0f});
  EXPECT_TRUE(throws_error(
      [&] { histogram.add(std::vector<int32_t>{1}, std::vector<int32_t>{1}, {}); },
      "1 sums of negative votes, 1 of positive ones and 0 flags; expected as many of each"));
  EXPECT_TRUE(throws_error([&] { histogram.add(VoteHistogram({1.0f})); }, "other alphas"));
  for (const float alpha : {0.75f, 2.0f, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_TRUE(throws_error([&] { histogram.skipped(alpha); }, "were not counted for alpha"));
  }
  for (const double share : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_TRUE(throws_error([&] { histogram.alpha_for_missed_share(share); }, "use 0 to 1"));
  }
}

TEST(VoteHistogram, FindsTheAlphaOfASkippedShare) {
  Neurons neurons;
  for (int i = 0; i < 1000; ++i) {
    neurons.add(500 + i % 100, 550, i % 3 == 0);
  }
  const VoteHistogram histogram = counted(neurons);
  for (const double share : {0.0, 0.1, 0.43, 0.5, 0.99, 1.0}) {
    const auto skipped =
        static_cast<double>(histogram.skipped(histogram.alpha_for_skipped_share(share)));
    EXPECT_NEAR(skipped / 1000.0, share, 0.011) << share;
  }
  EXPECT_TRUE(throws_error([&] { histogram.alpha_for_skipped_share(1.5); }, "1.5"));
  EXPECT_TRUE(throws_error([&] { histogram.alpha_for_skipped_share(std::nan("")); }, "nan"));
}

}  // namespace
}  // namespace sparsellm
