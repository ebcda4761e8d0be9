#include "tokenizer/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using testing::throws_error;
using Kind = Utf8Front::Kind;

TEST(Utf8, Fronts) {
  struct Case {
    std::string_view bytes;
    Kind kind;
    int length;
  };
  const Case cases[] = {
      {std::string_view("\0", 1), Kind::character, 1},
      {"a", Kind::character, 1},
      {"\x7f", Kind::character, 1},
      {"\x80", Kind::ill_formed, 1},
      {"\xbf\x80", Kind::ill_formed, 1},
      {"\xc0\x80", Kind::ill_formed, 1},
      {"\xc1\xbf", Kind::ill_formed, 1},
      {"\xc2", Kind::incomplete, 1},
      {"\xc2\x80", Kind::character, 2},
      {"\xc2\x7f", Kind::ill_formed, 1},
      {"\xc2\xc2", Kind::ill_formed, 1},
      {"\xdf\xbfz", Kind::character, 2},
      {"\xe0", Kind::incomplete, 1},
      {"\xe0\x9f\xbf", Kind::ill_formed, 1},  // overlong
      {"\xe0\xa0", Kind::incomplete, 2},
      {"\xe0\xa0\x80", Kind::character, 3},
      {"\xe2\x96", Kind::incomplete, 2},
      {"\xe2\x96z", Kind::ill_formed, 2},
      {"\xed\x9f\xbf", Kind::character, 3},
      {"\xed\xa0\x80", Kind::ill_formed, 1},  // a surrogate
      {"\xee\x80\x80", Kind::character, 3},
      {"\xef\xbf\xbf", Kind::character, 3},
      {"\xf0\x8f\xbf\xbf", Kind::ill_formed, 1},  // overlong
      {"\xf0\x90", Kind::incomplete, 2},
      {"\xf0\x90\x80", Kind::incomplete, 3},
      {"\xf0\x90\x80\x80", Kind::character, 4},
      {"\xf0\x9f\x98z", Kind::ill_formed, 3},
      {"\xf4\x8f\xbf\xbf", Kind::character, 4},
      {"\xf4\x90\x80\x80", Kind::ill_formed, 1},  // above U+10FFFF
      {"\xf5\x80\x80\x80", Kind::ill_formed, 1},
      {"\xff", Kind::ill_formed, 1},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(&c - cases);
    const Utf8Front front = utf8_front(c.bytes);
    EXPECT_EQ(front.kind, c.kind);
    EXPECT_EQ(front.length, c.length);
  }
}

TEST(Utf8, EveryCharacterSurvives) {
  for (char32_t character = 0; character <= 0x10ffff; ++character) {
    std::string text;
    append_utf8(character, text);
    const bool is_surrogate = character >= 0xd800 && character <= 0xdfff;
    const Utf8Front front = utf8_front(text);
    ASSERT_EQ(front.kind, is_surrogate ? Kind::ill_formed : Kind::character) << int(character);
    if (is_surrogate) {
      continue;
    }
    ASSERT_EQ(front.length, static_cast<int>(text.size())) << int(character);
    text += "x";
    std::string_view rest = text;
    ASSERT_EQ(take_character(rest), character);
    ASSERT_EQ(rest, "x") << int(character);
  }
}

TEST(Utf8, CheckTextNamesTheFirstBadByte) {
  EXPECT_NO_THROW(check_text(""));
  EXPECT_NO_THROW(check_text("na\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80"));
  struct Case {
    std::string_view text;
    std::string_view message;
  };
  const Case cases[] = {
      {"\x80", "invalid UTF-8 at byte 0"},
      {"0123456789abcdefg\xff", "invalid UTF-8 at byte 17"},
      {"ab\xc3", "invalid UTF-8 at byte 2"},
      {"\xc3\xaf\xe2\x82", "invalid UTF-8 at byte 2"},
      {"a\xed\xa0\x80", "invalid UTF-8 at byte 1"},
  };
  for (const Case& c : cases) {
    EXPECT_TRUE(throws_error([&] { check_text(c.text); }, c.message));
  }
  EXPECT_NO_THROW(check_text(std::string(kMaxTextBytes, 'a')));
  EXPECT_TRUE(throws_error([] { check_text(std::string(kMaxTextBytes + 1, 'a')); },
                           "the text has 67108865 bytes; at most 67108864 are supported"));
}

}  // namespace
}  // namespace sparsellm
