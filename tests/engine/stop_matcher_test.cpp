#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace sparsellm {
namespace {

struct Outcome {
  std::string shown;
  bool found = false;

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// By definition: the shortest prefix of the text that ends with a stop text decides.
Outcome expected(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 0; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop)) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) {
      return {.shown = text.substr(0, end - longest), .found = true};
    }
  }
  return {.shown = text, .found = false};
}

TEST(StopMatcher, Cases) {
  struct Case {
    std::vector<std::string> pieces;
    std::vector<std::string> stops;
    std::vector<std::string> shown;  // after each piece, and at the end
    bool found;
  };
  const std::vector<Case> cases{
      {{"a", "b"}, {}, {"a", "b", ""}, false},
      {{"one", "\n", "two"}, {"\n"}, {"one", "", "", ""}, true},
      {{"one\ntwo"}, {"\n"}, {"one", ""}, true},
      {{"Hel", "lo E", "ND", "!"}, {"END"}, {"Hel", "lo ", "", "", ""}, true},
      {{"E", "N", "x"}, {"END"}, {"", "", "ENx", ""}, false},
      {{"E", "N"}, {"END"}, {"", "", "EN"}, false},
      {{"aab"}, {"ab"}, {"a", ""}, true},
      {{"aa", "ab"}, {"aab"}, {"", "a", ""}, true},
      {{"abcd"}, {"abcd", "bc"}, {"a", ""}, true},  // "bc" is complete first
      {{"a", "b", "c", "d"}, {"abcd", "bc"}, {"", "", "a", "", ""}, true},
      {{"abc"}, {"c", "bc"}, {"a", ""}, true},  // both end there; the longer one
      {{"", "x", ""}, {"y"}, {"", "x", "", ""}, false},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    StopMatcher matcher(cases[i].stops);
    std::vector<std::string> shown;
    for (const std::string& piece : cases[i].pieces) {
      shown.push_back(matcher.add(piece));
    }
    shown.push_back(matcher.finish());
    EXPECT_EQ(shown, cases[i].shown) << "case " << i;
    EXPECT_EQ(matcher.found(), cases[i].found) << "case " << i;
  }
}

TEST(StopMatcher, BordersOfPiecesMakeNoDifference) {
  std::mt19937 random(5);
  const auto word = [&](size_t longest) {
    std::string text;
    for (size_t i = 0; i <= random() % longest; ++i) {
      text += static_cast<char>('a' + random() % 3);
    }
    return text;
  };
  int found = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (size_t i = 0; i <= random() % 3; ++i) {
      stops.push_back(word(7));
    }
    const std::string text = word(40);
    StopMatcher matcher(stops);
    Outcome outcome;
    for (size_t at = 0; at < text.size();) {
      const size_t length = random() % 4;
      outcome.shown += matcher.add(text.substr(at, length));
      at += length;
    }
    outcome.shown += matcher.finish();
    outcome.found = matcher.found();
    EXPECT_EQ(outcome, expected(text, stops)) << text << ", " << stops.front();
    found += outcome.found ? 1 : 0;
  }
  EXPECT_GT(found, 500);
  EXPECT_LT(found, 2900);
}

}  // namespace
}  // namespace sparsellm
