#include "sparse/prune/glob.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/testing/random.h"

namespace sparsellm {
namespace {

using testing::Random;

constexpr uint64_t kSeed = 11;

// By the definition, in exponential time.
bool naive_matches(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) {
    return text.empty();
  }
  if (pattern[0] == '*') {
    return naive_matches(pattern.substr(1), text) ||
           (!text.empty() && naive_matches(pattern, text.substr(1)));
  }
  return !text.empty() && (pattern[0] == '?' || pattern[0] == text[0]) &&
         naive_matches(pattern.substr(1), text.substr(1));
}

std::string random_text(Random& random, std::string_view letters) {
  std::string text;
  for (int64_t i = random.below(9); i > 0; --i) {
    text += letters[static_cast<size_t>(random.below(std::ssize(letters)))];
  }
  return text;
}

TEST(Glob, APatternEndsWhereItsViewDoes) {
  constexpr std::string_view kLonger = "ab*";
  EXPECT_FALSE(glob_matches(kLonger.substr(0, 2), "abc"));
  EXPECT_TRUE(glob_matches(kLonger, "abc"));
}

TEST(Glob, ModuleNames) {
  EXPECT_TRUE(glob_matches("*.mlp.*", "model.layers.3.mlp.up_proj"));
  EXPECT_FALSE(glob_matches("*.mlp.*", "model.layers.3.self_attn.q_proj"));
  EXPECT_TRUE(glob_matches("*.?_proj", "model.layers.3.self_attn.q_proj"));
  EXPECT_FALSE(glob_matches("*.?_proj", "model.layers.3.mlp.up_proj"));
  EXPECT_FALSE(glob_matches("mlp", "model.layers.3.mlp"));
  EXPECT_TRUE(glob_matches("", ""));
  EXPECT_TRUE(glob_matches("**", ""));
}

TEST(Glob, AgainstTheDefinition) {
  Random random(kSeed);
  int matches = 0;
  for (int i = 0; i < 100'000; ++i) {
    const std::string pattern = random_text(random, "ab*?*");
    const std::string text = random_text(random, "ab");
    const bool expected = naive_matches(pattern, text);
    matches += expected ? 1 : 0;
    ASSERT_EQ(glob_matches(pattern, text), expected) << pattern << " " << text;
  }
  EXPECT_GT(matches, 10'000);
}

TEST(Glob, CoversOnlyWhatItMatches) {
  Random random(kSeed);
  int covered = 0;
  for (int i = 0; i < 100'000; ++i) {
    const std::string pattern = random_text(random, "ab*?*");
    const std::string special = random_text(random, "ab*?");
    const std::string text = random_text(random, "ab");
    if (glob_covers(pattern, special)) {
      ++covered;
      ASSERT_TRUE(!glob_matches(special, text) || glob_matches(pattern, text))
          << pattern << " " << special << " " << text;
    }
  }
  EXPECT_GT(covered, 10'000);
  EXPECT_TRUE(glob_covers("*", "?"));
  EXPECT_TRUE(glob_covers("*.mlp.*", "*.mlp.up_proj"));
  EXPECT_TRUE(glob_covers("*.fc?", "*.fc1"));
  EXPECT_FALSE(glob_covers("*.fc?", "*.fc*"));
  EXPECT_FALSE(glob_covers("*.fc1", "*.fc?"));
}

TEST(Glob, HostilePatternsAreFast) {
  std::string pattern;
  for (int i = 0; i < 100; ++i) {
    pattern += "a*";
  }
  EXPECT_FALSE(glob_matches(pattern + "b", std::string(10'000, 'a')));
}

}  // namespace
}  // namespace sparsellm
