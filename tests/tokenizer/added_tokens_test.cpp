#include "tokenizer/added_tokens.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using testing::throws_error;

// "text" for ordinary text, "#id:text" for an added token with what it covers.
std::vector<std::string> split(const std::vector<AddedToken>& tokens, std::string_view text,
                               bool parse_special) {
  std::vector<std::string> result;
  for (const auto& segment : AddedTokens(tokens, "test").split(text, parse_special)) {
    result.push_back((segment.id ? "#" + std::to_string(*segment.id) + ":" : "") +
                     std::string(segment.text));
  }
  return result;
}

using Segments = std::vector<std::string>;

TEST(AddedTokens, LeftmostThenLongest) {
  const std::vector<AddedToken> tokens = {
      {.content = "<a>", .id = 1},    {.content = "<a>b", .id = 2}, {.content = "b<", .id = 3},
      {.content = "dragon", .id = 4}, {.content = "", .id = 5},
  };
  struct Case {
    std::string_view text;
    Segments segments;
  };
  const Case cases[] = {
      {"", {}},
      {"x", {"x"}},
      {"<a>", {"#1:<a>"}},
      {"x<a>y", {"x", "#1:<a>", "y"}},
      {"<a>bc", {"#2:<a>b", "c"}},
      {"<a><a>", {"#1:<a>", "#1:<a>"}},
      {"xb<a>", {"x", "#3:b<", "a>"}},
      {"<a", {"<a"}},
      {"<<a>>", {"<", "#1:<a>", ">"}},
      {"snapdragons", {"snap", "#4:dragon", "s"}},
      {"drag", {"drag"}},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(split(tokens, c.text, false), c.segments) << c.text;
  }
}

TEST(AddedTokens, SpecialTokensAreTextUnlessRequested) {
  const std::vector<AddedToken> tokens = {
      {.content = "<s>", .id = 1, .special = true},
      {.content = "s>b", .id = 2},
      {.content = "s>", .id = 3, .normalized = true},
      {.content = "<s><s>", .id = 4},
  };
  struct Case {
    std::string_view text;
    Segments as_text;
    Segments parsed;
  };
  const Case cases[] = {
      {"<s>", {"<", "#3:s>"}, {"#1:<s>"}},
      {"a<s>c", {"a<", "#3:s>", "c"}, {"a", "#1:<s>", "c"}},
      // The special token hides "s>b" even as text, but not the tokens of the second pass.
      {"<s>b", {"<", "#3:s>", "b"}, {"#1:<s>", "b"}},
      {"s>b", {"#2:s>b"}, {"#2:s>b"}},
      {"<s><s>", {"#4:<s><s>"}, {"#4:<s><s>"}},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(split(tokens, c.text, false), c.as_text) << c.text;
    EXPECT_EQ(split(tokens, c.text, true), c.parsed) << c.text;
  }
}

TEST(AddedTokens, NormalizedTokensComeSecond) {
  const std::vector<AddedToken> tokens = {
      {.content = "bc", .id = 1},
      {.content = "ab", .id = 2, .normalized = true},
      {.content = "abc", .id = 3, .normalized = true},
  };
  EXPECT_EQ(split(tokens, "abc", false), (Segments{"a", "#1:bc"}));
  EXPECT_EQ(split(tokens, "abab", false), (Segments{"#2:ab", "#2:ab"}));
}

TEST(AddedTokens, TakeWhiteSpaceAlong) {
  const std::vector<AddedToken> tokens = {
      {.content = "<l>", .id = 1, .lstrip = true},
      {.content = "<r>", .id = 2, .rstrip = true},
      {.content = "<b>", .id = 3, .lstrip = true, .rstrip = true},
      {.content = "\n", .id = 4},
      {.content = "\t", .id = 5, .lstrip = true},
  };
  struct Case {
    std::string_view text;
    Segments segments;
  };
  const Case cases[] = {
      {"a <l> b", {"a", "#1: <l>", " b"}},
      {"a <r> b", {"a ", "#2:<r> ", "b"}},
      {"a  <b>\u3000\u00a0b", {"a", "#3:  <b>\u3000\u00a0", "b"}},
      {" \u2028<b>", {"#3: \u2028<b>"}},
      {"a\u180e<l>", {"a\u180e", "#1:<l>"}},  // not white space
      {"\u00e9 <l>", {"\u00e9", "#1: <l>"}},
      {"<r>  <l>", {"#2:<r>  ", "#1:<l>"}},
      {"<l><l>", {"#1:<l>", "#1:<l>"}},
      // Tokens of white space after one that has taken it: as Hugging Face has it.
      {"<r>\n", {"#2:<r>\n", "#4:\n"}},
      {"<r>\t", {"#2:<r>\t"}},
      {"<r>\t<l>", {"#2:<r>\t", "#1:<l>"}},
      {"<r>\t a<b>", {"#2:<r>\t ", "a", "#3:<b>"}},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(split(tokens, c.text, true), c.segments) << c.text;
  }
}

TEST(AddedTokens, ManyTokensWithACommonPrefix) {
  std::vector<AddedToken> tokens;
  tokens.reserve(300);
  for (int i = 0; i < 300; ++i) {
    tokens.push_back({.content = "<|reserved_" + std::to_string(i) + "|>", .id = i});
  }
  EXPECT_EQ(split(tokens, "<|reserved_7|><|reserved_77|><|reserved_300|>", true),
            (Segments{"#7:<|reserved_7|>", "#77:<|reserved_77|>", "<|reserved_300|>"}));
}

TEST(AddedTokens, TextBetweenThemIsNormalized) {
  const AddedTokens tokens(
      {{.content = "<s>", .id = 1}, {.content = "b c", .id = 2, .normalized = true}}, "test",
      Normalizer({PrependStep{"_"}, ReplaceStep{" ", "_"}}));
  std::vector<std::string> segments;
  std::vector<bool> begins_text;
  const auto add = [&](const AddedTokens::Segment& segment) {
    segments.push_back((segment.id ? "#" + std::to_string(*segment.id) + ":" : "") +
                       std::string(segment.text));
    begins_text.push_back(segment.begins_text);
  };
  tokens.for_each_segment("a b c<s> <s>b c", false, add);
  // Token 2 is normalized like the text, so its content begins with the prepended character, too.
  EXPECT_EQ(segments, (Segments{"_a", "#2:_b_c", "#1:<s>", "__", "#1:<s>", "#2:_b_c"}));
  EXPECT_EQ(begins_text, (std::vector<bool>{true, false, false, false, false, false}));
}

TEST(AddedTokens, RefusedAfterNormalization) {
  const auto make = [](const std::vector<AddedToken>& tokens, const NormalizerStep& step) {
    AddedTokens(tokens, "test", Normalizer({step}));
  };
  const AddedToken a{.content = "a", .id = 1, .normalized = true};
  const AddedToken b{.content = "b", .id = 2, .normalized = true};
  EXPECT_TRUE(throws_error(
      [&] {
        make({a}, ReplaceStep{"a", ""});
      },
      R"(test: the normalizer leaves nothing of the added token "a")"));
  EXPECT_TRUE(throws_error(
      [&] {
        make({a, b}, ReplaceStep{"a", "b"});
      },
      R"(test: the normalizer makes "b" of two added tokens, one of them "b")"));
  EXPECT_TRUE(throws_error([&] { make({a}, PrependStep{std::string(1024, 'x')}); },
                           "has 1025 bytes; at most 1024 are supported"));
  const AddedToken verbatim{.content = "a", .id = 1};
  EXPECT_NO_THROW(make({verbatim, b}, ReplaceStep{"a", "b"}));
}

TEST(AddedTokens, Refused) {
  EXPECT_TRUE(throws_error(
      [] {
        split({{.content = "a", .id = 1}, {.content = "a", .id = 2}}, "", false);
      },
      R"(test: the added token "a" is there twice)"));
  EXPECT_TRUE(throws_error([] { split({{.content = std::string(1025, 'a')}}, "", false); },
                           "has 1025 bytes; at most 1024 are supported"));
}

}  // namespace
}  // namespace sparsellm
