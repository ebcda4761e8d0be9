#include "engine/penalties.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace sparsellm {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();

SamplingParams penalties(float repetition, float frequency, float presence,
                         std::vector<LogitBias> bias = {}) {
  SamplingParams params;
  params.repetition_penalty = repetition;
  params.frequency_penalty = frequency;
  params.presence_penalty = presence;
  params.logit_bias = std::move(bias);
  return params;
}

// After the prompt 0 1 and the continuation 0 3 0.
std::vector<float> adjust(const std::vector<float>& logits, const SamplingParams& params) {
  const std::vector<int32_t> tokens{0, 1, 0, 3, 0};
  const TokenHistory history{.tokens = tokens, .prompt_length = 2};
  return adjusted_logits(logits, params, history);
}

TEST(Penalties, AdjustAsTheyAreDefined) {
  const std::vector<float> logits{2.0f, -1.0f, 0.5f, 0.0f, 3.0f};
  struct Case {
    SamplingParams params;
    std::vector<float> expected;
  };
  const std::vector<Case> cases{
      {penalties(1, 0, 0), {2.0f, -1.0f, 0.5f, 0.0f, 3.0f}},
      {penalties(1, 0, 0, {{4, -4.0f}, {1, 0.5f}}), {2.0f, -0.5f, 0.5f, 0.0f, -1.0f}},
      // Once per token, however often it occurs; negative logits grow.
      {penalties(2.0f, 0, 0), {1.0f, -2.0f, 0.5f, 0.0f, 3.0f}},
      {penalties(0.5f, 0, 0), {4.0f, -0.5f, 0.5f, 0.0f, 3.0f}},
      // The continuation alone: token 1 stands in the prompt.
      {penalties(1, 0.25f, 0), {1.5f, -1.0f, 0.5f, -0.25f, 3.0f}},
      {penalties(1, -0.25f, 0), {2.5f, -1.0f, 0.5f, 0.25f, 3.0f}},
      {penalties(1, 0, 0.125f), {1.875f, -1.0f, 0.5f, -0.125f, 3.0f}},
      {penalties(1, 0, -8.0f), {10.0f, -1.0f, 0.5f, 8.0f, 3.0f}},
      {penalties(1, 0.25f, 0.125f), {1.375f, -1.0f, 0.5f, -0.375f, 3.0f}},
      // Bias comes before repetition: token 1 turns positive, and is divided.
      {penalties(2.0f, 0, 0, {{1, 2.0f}}), {1.0f, 0.5f, 0.5f, 0.0f, 3.0f}},
      // Repetition comes before frequency: 2 / 2 - 2 * 1, not (2 - 2 * 1) / 2.
      {penalties(2.0f, 1.0f, 0), {-1.0f, -2.0f, 0.5f, -1.0f, 3.0f}},
      {penalties(2.0f, 0.25f, 0.125f, {{1, 0.5f}, {4, -4}}), {0.375f, -1.0f, 0.5f, -0.375f, -1.0f}},
      // Ids outside the vocabulary.
      {penalties(1, 0, 0, {{5, 1.0f}, {-1, 1.0f}, {2147483647, 1.0f}}),
       {2.0f, -1.0f, 0.5f, 0.0f, 3.0f}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(adjust(logits, cases[i].params), cases[i].expected) << "case " << i;
  }
}

TEST(Penalties, InfiniteLogitsStayAndFiniteOnesStayFinite) {
  const std::vector<float> logits{kInfinity, -kInfinity, 1.0f, -kMax, kMax};
  struct Case {
    SamplingParams params;
    std::vector<float> expected;
  };
  const float tiny = std::numeric_limits<float>::denorm_min();
  const std::vector<Case> cases{
      {penalties(1, 0, 0, {{0, -kMax}, {1, kMax}, {2, 1.0f}, {3, -kMax}, {4, kMax}}),
       {kInfinity, -kInfinity, 2.0f, -kMax, kMax}},
      {penalties(kMax, 0, 0), {kInfinity, -kInfinity, 1.0f, -kMax, kMax}},
      {penalties(tiny, 0, 0), {kInfinity, -kInfinity, 1.0f, -kMax * tiny, kMax}},
      {penalties(1, kMax, kMax), {kInfinity, -kInfinity, 1.0f, -kMax, kMax}},
      {penalties(1, -kMax, -kMax), {kInfinity, -kInfinity, 1.0f, kMax, kMax}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(adjust(logits, cases[i].params), cases[i].expected) << "case " << i;
  }
  EXPECT_EQ(adjust({kMax, -kMax, 0.0f}, penalties(tiny, 0, 0)),
            (std::vector<float>{kMax, -kMax * tiny, 0.0f}));
  EXPECT_EQ(adjust({-kInfinity, kInfinity}, penalties(0.5f, -kMax, -1.0f, {{0, kMax}, {1, -kMax}})),
            (std::vector<float>{-kInfinity, kInfinity}));
  EXPECT_TRUE(std::isnan(adjust({std::nanf(""), 0.0f}, penalties(2.0f, 0, 1.0f))[0]));
}

TEST(Penalties, TokensOutsideTheVocabularyArePassedOver) {
  const std::vector<int32_t> tokens{-1, 7, 2147483647, -2147483647 - 1, 1};
  const SamplingParams all = penalties(2.0f, 0.25f, 0.5f);
  for (int64_t prompt_length : {0, 4}) {
    EXPECT_EQ(adjusted_logits(std::vector<float>{1.0f, 2.0f}, all,
                              {.tokens = tokens, .prompt_length = prompt_length}),
              (std::vector<float>{1.0f, 0.25f}));
  }
}

// In pieces or at once; the tokens of the prompt only where repetitions are penalised.
TEST(LogitAdjustments, AreKeptUpAsASequenceGrows) {
  const std::vector<int32_t> tokens{4, 5, 4, 6, 4, 6, 9, 100, -1};
  using List = std::vector<LogitAdjustment>;
  struct Case {
    SamplingParams params;
    List expected;
  };
  const Case cases[] = {
      {penalties(1, 0, 0), {}},
      {penalties(1, 0, 0, {{6, 2.0f}, {4, -1.0f}, {10, 3.0f}}),
       {{.token = 6, .bias = 2.0f}, {.token = 4, .bias = -1.0f}}},
      {penalties(1.5f, 0, 0),
       {{.token = 4, .count = 1},
        {.token = 5, .count = 0},
        {.token = 6, .count = 2},
        {.token = 9, .count = 1}}},
      {penalties(1, 0.5f, 0),
       {{.token = 6, .count = 2}, {.token = 4, .count = 1}, {.token = 9, .count = 1}}},
      {penalties(1, 0, 0.5f, {{9, 1.0f}, {3, 2.0f}}),
       {{.token = 9, .count = 1, .bias = 1.0f},
        {.token = 3, .bias = 2.0f},
        {.token = 6, .count = 2},
        {.token = 4, .count = 1}}},
  };
  for (const Case& c : cases) {
    for (const size_t step : {size_t{1}, size_t{2}, tokens.size()}) {
      LogitAdjustments adjustments(c.params, 10);
      EXPECT_TRUE(adjustments.all().empty());
      for (size_t length = 0; length <= tokens.size(); length += step) {
        adjustments.count({.tokens = std::span(tokens).first(length), .prompt_length = 3});
      }
      adjustments.count({.tokens = tokens, .prompt_length = 3});
      EXPECT_EQ(List(adjustments.all().begin(), adjustments.all().end()), c.expected);
      EXPECT_LE(std::ssize(adjustments.all()),
                LogitAdjustments::most(c.params, 3, std::ssize(tokens)));
    }
  }
}

TEST(LogitAdjustments, TheMostThatThereCanBe) {
  EXPECT_EQ(LogitAdjustments::most(penalties(1, 0, 0), 10, 30), 0);
  EXPECT_EQ(LogitAdjustments::most(penalties(1, 0, 0, {{1, 2.0f}, {3, 4.0f}}), 10, 30), 2);
  EXPECT_EQ(LogitAdjustments::most(penalties(1.1f, 0, 0, {{1, 2.0f}}), 10, 30), 31);
  EXPECT_EQ(LogitAdjustments::most(penalties(1, 0.5f, 0, {{1, 2.0f}}), 10, 30), 21);
  EXPECT_EQ(LogitAdjustments::most(penalties(1, 0, -1), 10, 30), 20);
}

TEST(Penalties, SayWhetherTheyAdjust) {
  const std::vector<int32_t> tokens{0, 1};
  const TokenHistory none;
  const TokenHistory prompt{.tokens = tokens, .prompt_length = 2};
  const TokenHistory both{.tokens = tokens, .prompt_length = 1};
  struct Case {
    SamplingParams params;
    bool after_none;
    bool after_prompt;
    bool after_both;
  };
  const std::vector<Case> cases{
      {penalties(1, 0, 0), false, false, false},
      {penalties(1.1f, 0, 0), false, true, true},
      {penalties(1, 0.1f, 0), false, false, true},
      {penalties(1, 0, -0.1f), false, false, true},
      {penalties(1, 0, 0, {{0, 1.0f}}), true, true, true},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    const SamplingParams& params = cases[i].params;
    EXPECT_EQ(adjusts_logits(params, none), cases[i].after_none) << "case " << i;
    EXPECT_EQ(adjusts_logits(params, prompt), cases[i].after_prompt) << "case " << i;
    EXPECT_EQ(adjusts_logits(params, both), cases[i].after_both) << "case " << i;
  }
}

}  // namespace
}  // namespace sparsellm
