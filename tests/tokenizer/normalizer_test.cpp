#include "tokenizer/normalizer.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/testing/throws_error.h"
#include "tokenizer/find_text.h"

namespace sparsellm {
namespace {

using testing::throws_error;
using Steps = std::vector<NormalizerStep>;

std::string normalize(const Steps& steps, std::string_view text) {
  std::string storage;
  Normalizer::Budget budget(text.size());
  return std::string(Normalizer(steps).normalize(text, storage, budget));
}

const ReplaceStep kSpaces{" ", "\u2581"};

TEST(Normalizer, Steps) {
  struct Case {
    Steps steps;
    std::string_view text;
    std::string_view normalized;
  };
  const Case cases[] = {
      {{}, "a b", "a b"},
      {{kSpaces}, "", ""},
      {{kSpaces}, "ab", "ab"},
      {{kSpaces}, " a  b ", "\u2581a\u2581\u2581b\u2581"},
      {{ReplaceStep{"aa", "b"}}, "aaaaa", "bba"},
      {{ReplaceStep{"ab", ""}}, "aabb", "ab"},
      {{ReplaceStep{"a", "aa"}}, "aba", "aabaa"},
      {{PrependStep{"\u2581"}}, "", ""},
      {{PrependStep{"\u2581"}}, "a", "\u2581a"},
      {{PrependStep{""}}, "a", "a"},
      // Each sees what the one before has made.
      {{PrependStep{" "}, kSpaces}, "a b", "\u2581a\u2581b"},
      {{kSpaces, PrependStep{" "}}, "a b", " a\u2581b"},
      {{ReplaceStep{"a", ""}, PrependStep{"x"}}, "aa", ""},
      {{ReplaceStep{"a", "b"}, ReplaceStep{"b", "c"}}, "ab", "cc"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(&c - cases);
    EXPECT_EQ(normalize(c.steps, c.text), c.normalized);
  }
}

TEST(Normalizer, WhatDoesNotChangeIsNotCopied) {
  const std::string text = "abc";
  std::string storage = "untouched";
  Normalizer::Budget none(0);
  EXPECT_EQ(Normalizer({kSpaces}).normalize(text, storage, none).data(), text.data());
  EXPECT_EQ(storage, "untouched");
}

TEST(Normalizer, WritesNoMoreThanFitsTheText) {
  const auto twice = ReplaceStep{"a", "aa"};
  EXPECT_EQ(normalize(Steps(14, twice), "aaa").size(), 3u << 14);
  EXPECT_TRUE(throws_error([&] { normalize(Steps(16, twice), "aaaaaaaaaaaaaaaa"); },
                           "the normalizer writes more than 1048832 bytes for a text of 16"));
  // All pieces of a text share what there is.
  const Normalizer normalizer({ReplaceStep{"a", std::string(1024, 'b')}});
  Normalizer::Budget budget(1000);
  std::string storage;
  EXPECT_TRUE(throws_error(
      [&] {
        for (int i = 0; i < 2000; ++i) {
          normalizer.normalize("a", storage, budget);
        }
      },
      "the normalizer writes more than 1064576 bytes for a text of 1000"));
}

TEST(Normalizer, Polls) {
  int polls = 0;
  std::string storage;
  const std::string text(5 << 20, ' ');
  Normalizer::Budget budget(text.size());
  Normalizer({kSpaces}).normalize(text, storage, budget, [&] { ++polls; });
  EXPECT_EQ(polls, 5);
}

TEST(Normalizer, SourceBytes) {
  struct Case {
    Steps steps;
    std::optional<int64_t> bytes;  // of 10
  };
  const Case cases[] = {
      {{}, 10},
      {{kSpaces, PrependStep{"abc"}}, 10},
      {{NfcStep()}, 35},
      {{ReplaceStep{"abcd", "xyz"}}, 14},
      {{ReplaceStep{"abcd", "xyz"}, NfcStep()}, 49},
      {{ReplaceStep{"a", ""}}, std::nullopt},
      {Steps(5, ReplaceStep{std::string(1024, 'a'), "b"}), std::nullopt},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(&c - cases);
    EXPECT_EQ(Normalizer(c.steps).source_bytes(10), c.bytes);
  }
}

TEST(FindText, Places) {
  constexpr size_t kNone = std::string_view::npos;
  EXPECT_EQ(find_text("abcabc", "bc", 0), 1u);
  EXPECT_EQ(find_text("abcabc", "bc", 2), 4u);
  EXPECT_EQ(find_text("abcabc", "bc", 5), kNone);
  EXPECT_EQ(find_text("abc", "abcd", 0), kNone);
  EXPECT_EQ(find_text("abc", "c", 3), kNone);
  EXPECT_EQ(find_text("", "c", 0), kNone);
  EXPECT_EQ(find_text(std::string_view("a\0b", 3), std::string_view("\0b", 2), 0), 1u);
}

}  // namespace
}  // namespace sparsellm
