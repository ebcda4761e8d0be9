// Draws against the exact distribution, which is computed here from the definitions of
// SamplingParams: in double, over the whole sorted vocabulary, one definition after the other.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/sampler.h"

namespace sparsellm {
namespace {

constexpr int kDraws = 20000;
constexpr int kLengths = 500;  // of the history; the draws of a seed differ by it

struct Setting {
  std::string name;
  SamplingParams params;
  std::vector<int32_t> banned = {};
  size_t vocabulary = 50;
  float grid = 0.0f;  // > 0: the logits are multiples of it, so that many are equal
};

std::vector<float> logits_of(const Setting& setting) {
  std::mt19937 random(static_cast<uint32_t>(setting.name.size() + 100 * setting.vocabulary));
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> logits(setting.vocabulary);
  for (float& logit : logits) {
    logit = normal(random);
  }
  // The tokens of the history: likely enough for the penalties to show, and of both signs.
  for (const auto& [id, logit] :
       {std::pair(3u, 2.0f), {7u, 3.0f}, {12u, -0.5f}, {20u, 3.5f}, {31u, 2.5f}, {45u, -0.5f}}) {
    logits[id] = logit;
  }
  if (setting.grid > 0.0f) {
    for (float& logit : logits) {
      logit = setting.grid * std::round(logit / setting.grid);
    }
  }
  return logits;
}

// Histories of many lengths that no penalty tells apart: the prompt repeats a token.
class Histories {
 public:
  explicit Histories(int64_t longest) : tokens_(static_cast<size_t>(longest), 3) {
    tokens_.insert(tokens_.end(), {7, 7, 12});
    tokens_.insert(tokens_.end(), kContinuation.begin(), kContinuation.end());
  }
  TokenHistory of_length(int64_t index) const {
    const size_t length = static_cast<size_t>(index) + 4 + kContinuation.size();
    return {.tokens = std::span<const int32_t>(tokens_).last(length), .prompt_length = index + 4};
  }
  static const inline std::set<int32_t> kPrompt{3, 7, 12};
  static const inline std::vector<int32_t> kContinuation{7, 20, 20, 20, 31, 45};

 private:
  std::vector<int32_t> tokens_;
};

struct Token {
  int32_t id;
  double logit;
  double probability;
};

void normalize(std::vector<Token>& tokens) {
  double total = 0.0;
  for (auto it = tokens.rbegin(); it != tokens.rend(); ++it) {
    total += it->probability;
  }
  for (Token& token : tokens) {
    token.probability /= total;
  }
}

double adjusted(double logit, int32_t id, const SamplingParams& params) {
  for (const LogitBias& entry : params.logit_bias) {
    logit += entry.token == id ? entry.bias : 0.0f;
  }
  const auto& continuation = Histories::kContinuation;
  const auto times = std::count(continuation.begin(), continuation.end(), id);
  if (times > 0 || Histories::kPrompt.count(id) > 0) {
    logit *= logit > 0 ? 1.0 / params.repetition_penalty : params.repetition_penalty;
  }
  logit -= static_cast<double>(times) * params.frequency_penalty;
  return times > 0 ? logit - params.presence_penalty : logit;
}

std::map<int32_t, double> exact_distribution(const Setting& setting) {
  const SamplingParams& params = setting.params;
  const std::vector<float> logits = logits_of(setting);
  std::vector<Token> tokens;
  for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); ++id) {
    if (std::count(setting.banned.begin(), setting.banned.end(), id) == 0) {
      const double logit = adjusted(logits[static_cast<size_t>(id)], id, params);
      tokens.push_back({id, logit, std::exp(logit / params.temperature)});
    }
  }
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const Token& a, const Token& b) { return a.logit > b.logit; });
  while (params.top_k > 0 && tokens.size() > static_cast<size_t>(params.top_k)) {
    tokens.pop_back();
  }
  normalize(tokens);
  double before = 0.0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (before >= params.top_p) {
      tokens.resize(i);
      break;
    }
    before += tokens[i].probability;
  }
  while (tokens.back().probability < params.min_p * tokens.front().probability) {
    tokens.pop_back();
  }
  normalize(tokens);
  std::map<int32_t, double> distribution;
  for (const Token& token : tokens) {
    distribution[token.id] = token.probability;
  }
  return distribution;
}

using Counts = std::map<int32_t, int>;

Counts draw_many(const Setting& setting, int lengths) {
  const std::vector<float> logits = logits_of(setting);
  const Histories histories(lengths);
  Counts counts;
  for (int i = 0; i < kDraws; ++i) {
    const auto seed = static_cast<uint64_t>(i / lengths);
    ++counts[sample_token(logits, setting.params, histories.of_length(i % lengths), setting.banned,
                          seed, i % lengths)];
  }
  return counts;
}

// The value that chi-square exceeds once in 10,000 times (Wilson and Hilferty 1931).
double critical_value(int degrees_of_freedom) {
  constexpr double kNormalQuantile = 3.719;
  const double variance = 2.0 / (9.0 * degrees_of_freedom);
  return degrees_of_freedom * std::pow(1.0 - variance + kNormalQuantile * std::sqrt(variance), 3.0);
}

struct Bin {
  double expected = 0.0;
  int count = 0;
};

// One per token, the rare ones together: chi-square needs expectations of five or more.
std::vector<Bin> bins_of(const Counts& counts, const std::map<int32_t, double>& distribution) {
  std::vector<Bin> bins;
  Bin rare;
  for (const auto& [id, probability] : distribution) {
    const double expected = kDraws * probability;
    const int count = counts.count(id) > 0 ? counts.at(id) : 0;
    if (expected >= 5.0) {
      bins.push_back({expected, count});
    } else {
      rare.expected += expected;
      rare.count += count;
    }
  }
  if (rare.expected >= 5.0) {
    bins.push_back(rare);
  } else {
    bins.front().expected += rare.expected;
    bins.front().count += rare.count;
  }
  return bins;
}

::testing::AssertionResult follows(const Counts& counts,
                                   const std::map<int32_t, double>& distribution) {
  for (const auto& [id, count] : counts) {
    if (distribution.count(id) == 0) {
      return ::testing::AssertionFailure() << "token " << id << " has probability 0";
    }
  }
  const std::vector<Bin> bins = bins_of(counts, distribution);
  if (bins.size() == 1) {
    return ::testing::AssertionSuccess();
  }
  double chi_square = 0.0;
  for (const Bin& bin : bins) {
    chi_square += (bin.count - bin.expected) * (bin.count - bin.expected) / bin.expected;
  }
  const int degrees_of_freedom = static_cast<int>(bins.size()) - 1;
  const double critical = critical_value(degrees_of_freedom);
  return (chi_square <= critical ? ::testing::AssertionSuccess() : ::testing::AssertionFailure())
         << "chi-square " << chi_square << " of " << degrees_of_freedom
         << " degrees of freedom, critical value " << critical;
}

SamplingParams filters(float temperature, int32_t top_k, float top_p, float min_p) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  params.min_p = min_p;
  return params;
}

SamplingParams temperature(float value) { return filters(value, 0, 1.0f, 0.0f); }

SamplingParams penalized(SamplingParams params, float repetition, float frequency, float presence,
                         std::vector<LogitBias> bias) {
  params.repetition_penalty = repetition;
  params.frequency_penalty = frequency;
  params.presence_penalty = presence;
  params.logit_bias = std::move(bias);
  return params;
}

std::vector<Setting> settings() {
  const std::vector<LogitBias> bias{{7, 2.5f}, {49, -1.0f}, {0, 1.5f}};
  return {
      {.name = "temperature 0.3", .params = temperature(0.3f)},
      {.name = "temperature 0.7", .params = temperature(0.7f)},
      {.name = "temperature 1", .params = temperature(1.0f)},
      {.name = "temperature 1.7", .params = temperature(1.7f)},
      {.name = "top_k 1", .params = filters(1.7f, 1, 1.0f, 0.0f)},
      {.name = "top_k 12", .params = filters(1.7f, 12, 1.0f, 0.0f)},
      {.name = "top_k 20 of ties", .params = filters(1.7f, 20, 1.0f, 0.0f), .grid = 1.0f},
      {.name = "top_k 1000", .params = filters(1.0f, 1000, 1.0f, 0.0f)},
      {.name = "top_p 0.5", .params = filters(1.0f, 0, 0.5f, 0.0f)},
      {.name = "top_p 0.95", .params = filters(1.7f, 0, 0.95f, 0.0f)},
      {.name = "top_p 0.8 of ties", .params = filters(1.0f, 0, 0.8f, 0.0f), .grid = 1.0f},
      {.name = "min_p 0.05", .params = filters(1.0f, 0, 1.0f, 0.05f)},
      {.name = "all filters", .params = filters(1.7f, 30, 0.9f, 0.07f)},
      {.name = "banned", .params = temperature(1.0f), .banned = {0, 49, 7, 8, 9, 7, 50, -1}},
      {.name = "banned and filters",
       .params = filters(1.7f, 25, 0.9f, 0.05f),
       .banned = {20, 3, 31}},
      {.name = "repetition", .params = penalized(temperature(1.0f), 1.5f, 0, 0, {})},
      {.name = "repetition < 1", .params = penalized(temperature(1.0f), 0.6f, 0, 0, {})},
      {.name = "frequency", .params = penalized(temperature(0.7f), 1, 0.4f, 0, {})},
      {.name = "presence", .params = penalized(temperature(0.7f), 1, 0, 0.9f, {})},
      {.name = "frequency < 0", .params = penalized(temperature(1.7f), 1, -1.1f, 0, {})},
      {.name = "bias", .params = penalized(temperature(0.7f), 1, 0, 0, bias)},
      {.name = "everything",
       .params = penalized(filters(1.7f, 35, 0.95f, 0.03f), 1.3f, 0.3f, 0.5f, bias),
       .banned = {12, 2}},
      // Where the filters skip most of the vocabulary unordered.
      {.name = "top_k 6 of 700", .params = filters(1.0f, 6, 1.0f, 0.0f), .vocabulary = 700},
      {.name = "top_k 5 of 700 with bans",
       .params = filters(1.0f, 5, 1.0f, 0.0f),
       .banned = {699, 0, 300},
       .vocabulary = 700},
      {.name = "top_k 7 of 700 with ties",
       .params = filters(1.0f, 7, 1.0f, 0.0f),
       .vocabulary = 700,
       .grid = 2.0f},
      {.name = "top_p 0.6 of 700", .params = filters(0.7f, 0, 0.6f, 0.0f), .vocabulary = 700},
      {.name = "everything of 700",
       .params = penalized(filters(1.0f, 9, 0.9f, 0.01f), 1.3f, 0.3f, 0.5f, bias),
       .banned = {12, 2},
       .vocabulary = 700},
  };
}

TEST(SamplerDistribution, DrawsOfManySeedsFollowTheDefinitions) {
  for (const Setting& setting : settings()) {
    EXPECT_TRUE(follows(draw_many(setting, kLengths), exact_distribution(setting))) << setting.name;
  }
}

TEST(SamplerDistribution, DrawsOfOneSeedFollowTheDefinitions) {
  for (const Setting& setting :
       {Setting{.name = "temperature", .params = temperature(1.0f)},
        Setting{.name = "all filters", .params = filters(1.7f, 30, 0.9f, 0.07f)}}) {
    EXPECT_TRUE(follows(draw_many(setting, kDraws), exact_distribution(setting))) << setting.name;
  }
}

// So many draws tell neighbouring settings apart.
TEST(SamplerDistribution, DrawsDoNotFollowOtherSettings) {
  const auto named = [](const SamplingParams& params) {
    return Setting{.name = "same logits", .params = params};
  };
  const SamplingParams base = penalized(filters(1.0f, 20, 0.9f, 0.02f), 1.3f, 0.3f, 0.5f, {});
  const Counts counts = draw_many(named(base), kLengths);
  EXPECT_TRUE(follows(counts, exact_distribution(named(base))));
  const std::vector<SamplingParams> others{
      penalized(filters(1.05f, 20, 0.9f, 0.02f), 1.3f, 0.3f, 0.5f, {}),
      penalized(filters(1.0f, 5, 0.9f, 0.02f), 1.3f, 0.3f, 0.5f, {}),
      penalized(filters(1.0f, 20, 0.8f, 0.02f), 1.3f, 0.3f, 0.5f, {}),
      penalized(filters(1.0f, 20, 0.9f, 0.2f), 1.3f, 0.3f, 0.5f, {}),
      penalized(filters(1.0f, 20, 0.9f, 0.02f), 1.0f, 0.3f, 0.5f, {}),
      penalized(filters(1.0f, 20, 0.9f, 0.02f), 1.3f, 0.0f, 0.5f, {}),
      penalized(filters(1.0f, 20, 0.9f, 0.02f), 1.3f, 0.3f, 0.0f, {}),
      penalized(filters(1.0f, 20, 0.9f, 0.02f), 1.3f, 0.3f, 0.5f, {{7, 0.5f}}),
  };
  for (size_t i = 0; i < others.size(); ++i) {
    EXPECT_FALSE(follows(counts, exact_distribution(named(others[i])))) << "case " << i;
  }
}

}  // namespace
}  // namespace sparsellm
