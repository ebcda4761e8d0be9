#include "tokenizer/nfc.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "tests/testing/random.h"
#include "tokenizer/utf8.h"

namespace sparsellm {
namespace {

constexpr char32_t kEndOfUnicode = 0x110000;

std::string nfc(std::string_view text) {
  std::string storage;
  return std::string(to_nfc(text, storage));
}

std::string utf8(char32_t character) {
  std::string text;
  append_utf8(character, text);
  return text;
}

bool is_surrogate(char32_t c) { return c >= 0xd800 && c < 0xe000; }

// What the library makes of a text without NUL at once.
std::string expected(const std::string& text) {
  utf8proc_uint8_t* result = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));
  std::string copy = reinterpret_cast<const char*>(result);
  std::free(result);
  return copy;
}

TEST(Nfc, Examples) {
  struct Case {
    std::string_view text;
    std::string_view normalized;
  };
  const Case cases[] = {
      {"", ""},
      {"abc", "abc"},
      {"e\u0301", "\u00e9"},
      {"xe\u0301y e\u0301", "x\u00e9y \u00e9"},
      {"abcdefghijklmnope\u0301", "abcdefghijklmnop\u00e9"},
      {"\u0301e", "\u0301e"},
      {"\u212b\u2126\u212a", "\u00c5\u03a9K"},
      {"q\u0307\u0323", "q\u0323\u0307"},  // ordered by class
      {"a\u0307\u0323", "\u1ea1\u0307"},   // the other mark is composed
      {"e\u0301\u0301", "\u00e9\u0301"},   // the second is blocked
      {"\u1100\u1161\u11a8", "\uac01"},    // Hangul
      {"\uac00\u11a8", "\uac01"},
      {"\u1100a\u1161", "\u1100a\u1161"},
      {"\u0958", "\u0915\u093c"},  // excluded from composition
      {"\u1fbe\u0308\u0301", "\u0390"},
      {"\u0344", "\u0308\u0301"},
      {"\U0001d160", "\U0001d158\U0001d165\U0001d16e"},
      {"\u09c7\u09be", "\u09cb"},  // the second is no mark that is reordered
      {"\u304b\u3099", "\u304c"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(nfc(c.text), c.normalized) << c.text;
    EXPECT_EQ(nfc(c.normalized), c.normalized) << c.text;
  }
  EXPECT_EQ(nfc(std::string_view("\0e\u0301\0", 5)), std::string_view("\0\u00e9\0", 4));
}

TEST(Nfc, NormalizedTextIsNotCopied) {
  for (const std::string_view text : {"plain", "na\u00efve \u65e5\u672c", "\u0928\u0941 \ud55c"}) {
    std::string storage = "untouched";
    EXPECT_EQ(to_nfc(text, storage).data(), text.data());
    EXPECT_EQ(storage, "untouched");
  }
}

TEST(Nfc, IsTheLibrarysOfEveryCharacter) {
  for (char32_t c = 1; c < kEndOfUnicode; ++c) {
    if (!is_surrogate(c)) {
      ASSERT_EQ(nfc(utf8(c)), expected(utf8(c))) << static_cast<uint32_t>(c);
    }
  }
}

TEST(Nfc, IsTheLibrarysOfRandomTexts) {
  // All that changes, is composed or is reordered, and others.
  std::vector<std::string> parts;
  for (char32_t c = 1; c < kEndOfUnicode; ++c) {
    if (is_surrogate(c)) {
      continue;
    }
    const auto code = static_cast<int32_t>(c);
    if (utf8proc_get_property(code)->combining_class != 0 || expected(utf8(c)) != utf8(c)) {
      parts.push_back(utf8(c));
    }
  }
  for (const char* part : {"a", "e", " ", "\u03b1", "\u03b9", "\u1100", "\u1161", "\u11a8",
                           "\uac00", "\u09c7", "\u09be", "\u0bc6", "\u304b", "K", "\u0928"}) {
    for (int i = 0; i < 100; ++i) {
      parts.emplace_back(part);
    }
  }
  testing::Random random(1);
  for (int trial = 0; trial < 20'000; ++trial) {
    std::string text;
    for (int64_t i = random.below(12); i >= 0; --i) {
      text += parts[static_cast<size_t>(random.below(std::ssize(parts)))];
    }
    ASSERT_EQ(nfc(text), expected(text)) << text;
  }
}

// Of the canonical compositions, so that a cut is never in front of a second part.
TEST(Nfc, PiecesBeginWithWhatNothingChanges) {
  std::vector<bool> is_second(kEndOfUnicode);
  for (int32_t c = 0x1161; c <= 0x11c2; ++c) {
    is_second[static_cast<size_t>(c)] = true;
  }
  const auto decompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
  for (int32_t c = 0; c < static_cast<int32_t>(kEndOfUnicode); ++c) {
    int32_t parts[8];
    int boundary_class = 0;
    const auto count = is_surrogate(static_cast<char32_t>(c))
                           ? 1
                           : utf8proc_decompose_char(c, parts, 8, decompose, &boundary_class);
    if (count > 1) {
      is_second[static_cast<size_t>(parts[count - 1])] = true;
    }
  }
  int count = 0;
  for (char32_t c = 1; c < kEndOfUnicode; ++c) {
    if (is_surrogate(c) || !begins_nfc_piece(c)) {
      continue;
    }
    ++count;
    const auto code = static_cast<int32_t>(c);
    EXPECT_EQ(expected(utf8(c)), utf8(c)) << code;
    EXPECT_EQ(utf8proc_get_property(code)->combining_class, 0) << code;
    EXPECT_FALSE(is_second[c]) << code;
  }
  EXPECT_GT(count, 40'000);
  EXPECT_FALSE(begins_nfc_piece(0x0301));
  EXPECT_FALSE(begins_nfc_piece(0x3099));
  EXPECT_FALSE(begins_nfc_piece(0x10ffff));
}

// The library's own ordering would take hours.
TEST(Nfc, LongRunsOfMarks) {
  std::string text = "q";
  std::string above;
  std::string below;
  for (int i = 0; i < 500'000; ++i) {
    text += i % 2 == 0 ? "\u0307" : "\u0323";
    (i % 2 == 0 ? above : below) += i % 2 == 0 ? "\u0307" : "\u0323";
  }
  int polls = 0;
  std::string storage;
  EXPECT_EQ(to_nfc(text, storage), "q" + below + above);
  const std::string words(std::string(3 << 20, 'a') + "e\u0301");
  EXPECT_EQ(to_nfc(words + words, storage, [&] { ++polls; }).size(), 2 * words.size() - 2);
  EXPECT_GE(polls, 1);
}

}  // namespace
}  // namespace sparsellm
