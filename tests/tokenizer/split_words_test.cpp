// How words are cut without regular expressions: by a text, and by spaces as SentencePiece has
// them.

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/pretokenize.h"

namespace sparsellm {
namespace {

using Words = std::vector<std::string>;
using Prepend = MetaspaceStep::Prepend;

Words words(std::vector<PretokenizerStep> steps, std::string_view text, bool begins_text = true) {
  Words result;
  MatchLimit limit(text.size());
  const Pretokenizer pretokenizer({.steps = std::move(steps), .use_gpt2_pattern = false});
  pretokenizer.for_each_word(text, begins_text, limit,
                             [&](std::string_view word) { result.emplace_back(word); });
  return result;
}

SplitStep split(std::string_view pattern, SplitBehavior behavior, bool invert = false) {
  return {.pattern = std::string(pattern),
          .kind = SplitStep::Pattern::text,
          .behavior = behavior,
          .invert = invert};
}

TEST(SplitWords, Behaviors) {
  struct Case {
    SplitBehavior behavior;
    bool invert;
    std::string_view text;
    Words words;
  };
  using B = SplitBehavior;
  const Case cases[] = {
      {B::removed, false, "the-final--countdown", {"the", "final", "countdown"}},
      {B::isolated, false, "the-final--countdown", {"the", "-", "final", "-", "-", "countdown"}},
      {B::merged_with_previous,
       false,
       "the-final--countdown",
       {"the-", "final-", "-", "countdown"}},
      {B::merged_with_next, false, "the-final--countdown", {"the", "-final", "-", "-countdown"}},
      {B::contiguous, false, "the-final--countdown", {"the", "-", "final", "--", "countdown"}},

      {B::removed, false, "-", {}},
      {B::isolated, false, "-", {"-"}},
      {B::merged_with_previous, false, "-a", {"-", "a"}},
      {B::merged_with_previous, false, "a-", {"a-"}},
      {B::merged_with_previous, false, "--a-", {"-", "-", "a-"}},
      {B::merged_with_next, false, "-a", {"-a"}},
      {B::merged_with_next, false, "a-", {"a", "-"}},
      {B::merged_with_next, false, "a--", {"a", "-", "-"}},
      {B::contiguous, false, "--a", {"--", "a"}},
      {B::contiguous, false, "aa", {"aa"}},

      {B::removed, true, "a-b--", {"-", "-", "-"}},
      {B::isolated, true, "a-b--", {"a", "-", "b", "-", "-"}},
      {B::merged_with_previous, true, "a-b--c", {"a", "-b", "-", "-c"}},
      {B::merged_with_next, true, "a-b--c", {"a-", "b-", "-", "c"}},
      {B::contiguous, true, "a--b", {"a", "--", "b"}},
      {B::removed, false, "", {}},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(words({split("-", c.behavior, c.invert)}, c.text), c.words) << c.text;
  }
  EXPECT_EQ(words({split("ab", B::isolated)}, "aababb"), (Words{"a", "ab", "ab", "b"}));
  EXPECT_EQ(words({split("aa", B::isolated)}, "aaa"), (Words{"aa", "a"}));
}

TEST(SplitWords, RemovedTextIsInNoWord) {
  const auto removes = [](std::vector<PretokenizerStep> steps) {
    return Pretokenizer({.steps = std::move(steps), .use_gpt2_pattern = false}).removes_text();
  };
  EXPECT_FALSE(removes({MetaspaceStep(), split("-", SplitBehavior::isolated)}));
  EXPECT_TRUE(removes({MetaspaceStep(), split("-", SplitBehavior::removed)}));
}

TEST(SplitWords, Metaspace) {
  struct Case {
    Prepend prepend;
    bool split;
    bool begins_text;
    std::string_view text;
    Words words;
  };
  const Case cases[] = {
      {Prepend::always, true, true, "Hey friend!", {"\u2581Hey", "\u2581friend!"}},
      {Prepend::always, true, true, "a  b ", {"\u2581a", "\u2581", "\u2581b", "\u2581"}},
      {Prepend::always, true, false, "ab", {"\u2581ab"}},
      {Prepend::always, true, true, " ab", {"\u2581ab"}},
      {Prepend::always, true, true, "\u2581ab", {"\u2581ab"}},
      {Prepend::always,
       true,
       true,
       "a\u2581b \u2581c",
       {"\u2581a", "\u2581b", "\u2581", "\u2581c"}},
      {Prepend::always, true, true, " ", {"\u2581"}},
      {Prepend::first, true, true, "a b", {"\u2581a", "\u2581b"}},
      {Prepend::first, true, false, "a b", {"a", "\u2581b"}},
      {Prepend::never, true, true, "a b", {"a", "\u2581b"}},
      {Prepend::always, false, true, "a  b", {"\u2581a\u2581\u2581b"}},
      {Prepend::always, false, true, " a", {"\u2581a"}},
      {Prepend::first, false, true, "a b", {"\u2581a\u2581b"}},
      {Prepend::first, false, false, "a b", {"a\u2581b"}},
      {Prepend::never, false, true, "ab", {"ab"}},
      {Prepend::always, true, true, "", {}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(&c - cases);
    EXPECT_EQ(words({MetaspaceStep{.prepend = c.prepend, .split = c.split}}, c.text, c.begins_text),
              c.words);
  }
  EXPECT_EQ(words({MetaspaceStep{.replacement = "_"}}, "a b_c"), (Words{"_a", "_b", "_c"}));
  EXPECT_EQ(words({MetaspaceStep{.replacement = " "}}, "a b"), (Words{" a", " b"}));
}

// "first" is about the word that begins the text, also after other steps.
TEST(SplitWords, MetaspaceAfterASplit) {
  const MetaspaceStep first{.prepend = Prepend::first};
  EXPECT_EQ(words({split("-", SplitBehavior::isolated), first}, "a-b c"),
            (Words{"\u2581a", "-", "b", "\u2581c"}));
  EXPECT_EQ(words({split("-", SplitBehavior::removed), first}, "-b"), (Words{"b"}));
  EXPECT_EQ(words({MetaspaceStep(), first}, "a b"), (Words{"\u2581a", "\u2581b"}));
  EXPECT_EQ(words({first, split("\u2581", SplitBehavior::isolated)}, "a b"),
            (Words{"\u2581", "a", "\u2581", "b"}));
}

}  // namespace
}  // namespace sparsellm
