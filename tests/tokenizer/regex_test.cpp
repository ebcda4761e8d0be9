#include "tokenizer/regex.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using testing::throws_error;

std::vector<std::string> split(std::string_view pattern, std::string_view text) {
  std::vector<std::string_view> pieces;
  Regex(pattern).split(text, pieces);
  return {pieces.begin(), pieces.end()};
}

using Pieces = std::vector<std::string>;

TEST(Regex, SplitsIntoMatchesAndTheRest) {
  struct Case {
    std::string_view pattern;
    std::string_view text;
    Pieces pieces;
  };
  const Case cases[] = {
      {"a", "", {}},
      {"a", "bcd", {"bcd"}},
      {"a", "baacd", {"b", "a", "a", "cd"}},
      {"a+", "baacda", {"b", "aa", "cd", "a"}},
      {"a|ab", "ab", {"a", "b"}},
      {"ab?(c(d))?", "abcda", {"abcd", "a"}},
      {".+", "ab\ncd", {"ab", "\n", "cd"}},
      {".", std::string_view("\0\r\n", 3), {std::string(1, '\0'), "\r", "\n"}},
      {"\xc3\xa9+", "e\u00e9\u00e9", {"e", "\u00e9\u00e9"}},
      {"[^a]", "a\u65e5b", {"a", "\u65e5", "b"}},
      {"[\u4e00-\u9fa5]+", "x\u65e5\u672cy", {"x", "\u65e5\u672c", "y"}},
      {R"(\p{N}{1,3})", "12345", {"123", "45"}},
      {R"(a{2}|b{2,})", "aaabbb", {"aa", "a", "bbb"}},
      {R"(\p{Lu}\p{Ll}*)", "aBcDe", {"a", "Bc", "De"}},
      {R"(\d+|\D)", "\u0664\u0665x", {"\u0664\u0665", "x"}},
      {R"([\-\]\\^]+)", "a-]\\^b", {"a", "-]\\^", "b"}},
      {R"(\n|\t|\r|\f|\v|\.)", "a\v.", {"a", "\v", "."}},
      {R"(a+?b|a++)", "aab", {"aab"}},
      {R"((?>a|ab)c)", "abcac", {"abc", "ac"}},
      {R"((?:ab)+(?=c))", "ababc", {"abab", "c"}},
      {R"(a(?!b))", "abaa", {"ab", "a", "a"}},
      // White space is Unicode's White_Space: not U+180E, U+200B or U+FEFF.
      {R"(\s+)", "a\u0085\u00a0\u1680\u2028\u3000b", {"a", "\u0085\u00a0\u1680\u2028\u3000", "b"}},
      {R"(\s)", "a\u180eb\u200bc\ufeff\x1c", {"a\u180eb\u200bc\ufeff\x1c"}},
      {R"([^\s]+)", "a\u180eb c", {"a\u180eb", " ", "c"}},
      {R"(\S+)", " \u180e\u3000x", {" ", "\u180e", "\u3000", "x"}},
      // Simple case folding, with U+017F for s and U+212A for k.
      {R"((?i:'s|k))", "x'\u017f\u212aK", {"x", "'\u017f", "\u212a", "K"}},
      {R"((?i:'LL)|x)", "'ll'lL'L", {"'ll", "'lL", "'L"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.pattern);
    EXPECT_EQ(split(c.pattern, c.text), c.pieces);
  }
}

TEST(Regex, RefusesWhatOnigurumaReadsDifferently) {
  struct Case {
    std::string_view pattern;
    std::string_view message;
  };
  const Case cases[] = {
      {"^a", R"(the regular expression "^a" has "^", which is not supported)"},
      {"a$", R"(has "$")"},
      {R"(\w)", R"(has "\\w")"},
      {R"(\bx)", R"(has "\\b")"},
      {R"(\h)", R"(has "\\h")"},
      {R"(\Ra)", R"(has "\\R")"},
      {R"(\Ka)", R"(has "\\K")"},
      {R"(\Aa)", R"(has "\\A")"},
      {R"(\Qa\E)", R"(has "\\Q")"},
      {R"((a)\1)", R"(has "\\1")"},
      {R"(\x41)", R"(has "\\x")"},
      {R"(\u0041)", R"(has "\\u")"},
      {R"(a\)", R"(has "\\")"},
      {"\\\xc3\xa9", "which is not supported"},
      {R"(\pL)", R"(has "\\pL")"},
      {R"(\p{L)", R"(has "\\p{")"},
      {R"(\p{Han})", R"(has "\\p{Han}")"},
      {R"(\p{^L})", R"(has "\\p{^L}")"},
      {R"([\p{Greek}])", R"(has "\\p{Greek}")"},
      {"[[:alpha:]]", R"(has "[")"},
      {"[a[b]]", R"(has "[")"},
      {"[a&&b]", R"(has "&&")"},
      {"[]a]", R"(has "]")"},
      {"[^]a]", R"(has "]")"},
      {"[a", "has a class without an end"},
      {"[\\", R"(has "\\")"},
      {"a]", R"(has "]")"},
      {"a}", R"(has "}")"},
      {"a)", "has \")\""},
      {"a{", R"(has "{")"},
      {"a{,3}", R"(has "{,3")"},
      {"a{x}", R"(has "{")"},
      {"a{2}+", R"(has "+")"},
      {"a{2}?", R"(has "?")"},
      {"a**", R"(has "*")"},
      {"a+++", R"(has "+")"},
      {"(?<n>a)", "has \"(?<\""},
      {"(?<=a)b", "has \"(?<\""},
      {"(?i)a", "has \"(?i\""},
      {"(?m:a)", "has \"(?m\""},
      {"(?#x)a", "has \"(?#\""},
      {"(*UTF)a", "has \"(*\""},
      {"(?i:st)", R"(has "st")"},
      {"(?i:oSS)", R"(has "SS")"},
      {"(?i:a.)", R"(has ".")"},
      {"(?i:(a))", "has \"(\""},
      {"(?i:\u00e9)", "which is not supported"},
      {"(a", "does not compile: missing closing parenthesis"},
      {"*a", "does not compile: quantifier does not follow a repeatable item"},
      {"a{3,2}", "does not compile: numbers out of order"},
      {"[b-a]", "does not compile: range out of order"},
      {"((a{100}){100}){100}", "does not compile: regular expression is too large"},
      {"", "can match the empty string"},
      {"a*", "can match the empty string"},
      {"a|", "can match the empty string"},
      {"(?=a)", "can match the empty string"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.pattern);
    EXPECT_TRUE(throws_error([&] { Regex{c.pattern}; }, c.message));
  }
  const std::string nested = std::string(60, '(') + "a" + std::string(60, ')');
  EXPECT_TRUE(throws_error([&] { Regex{nested}; }, "parentheses are too deeply nested"));
  EXPECT_TRUE(throws_error([] { Regex{std::string(20'001, 'a')}; }, "has 20001 bytes"));
}

TEST(Regex, ManyStepsOrMuchMemoryAreAnError) {
  struct Case {
    std::string_view pattern;
    std::string text;
  };
  const Case cases[] = {
      {"(?:a|aa)+b", std::string(60, 'a') + "cb"},
      {"(a+)+b", std::string(60, 'a') + "cb"},
      {"(?:a|x)+y|x", std::string(1'000'000, 'a')},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.pattern);
    const Regex regex(c.pattern);
    std::vector<std::string_view> pieces;
    EXPECT_TRUE(throws_error([&] { regex.split(c.text, pieces); }, "limit exceeded"));
  }
  // Steps that take about a second, not the hours of the patterns above: the limit is what ends
  // them.
  const Regex regex("(a+)+b|c");
  std::vector<std::string_view> pieces;
  EXPECT_TRUE(
      throws_error([&] { regex.split(std::string(28, 'a') + "cb", pieces); }, "limit exceeded"));
  EXPECT_EQ(split(R"(\s*[\r\n]+|\s+)", std::string(1'000'000, ' ') + "x").size(), 2u);
  EXPECT_EQ(split(R"(\s+(?!\S)|\s+)", std::string(1'000'000, ' ') + "x").size(), 3u);
}

}  // namespace
}  // namespace sparsellm
