#include "tools/serve/text_offsets.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/byte_tokenizer.h"

namespace sparsellm {
namespace {

using testing::ByteTokenizer;

std::vector<int64_t> offsets_of(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                                bool continues = true, bool show_special = false) {
  TextOffsets offsets(tokenizer, continues, show_special);
  std::vector<int64_t> result;
  result.reserve(ids.size());
  for (const int32_t id : ids) {
    result.push_back(offsets.add(id));
  }
  return result;
}

using Offsets = std::vector<int64_t>;

TEST(TextOffsets, CountCharactersOfUtf8) {
  EXPECT_EQ(count_characters(""), 0);
  EXPECT_EQ(count_characters("aé\xe2\x96\x81\xf0\x9f\x98\x80!"), 5);
}

TEST(TextOffsets, AreThoseOfTheTextBefore) {
  const ByteTokenizer tokenizer({.texts = {"Once", " \xc3\xbcpon", " a", "\xf0\x9f\x98\x80"}});
  EXPECT_EQ(offsets_of(tokenizer, {258, 259, 261, 260}), (Offsets{0, 4, 9, 10}));
  TextOffsets later(tokenizer, true, false, 7);
  EXPECT_EQ(later.add(258), 7);
  EXPECT_EQ(later.add(258), 11);
}

TEST(TextOffsets, PartsOfACharacterStandWhereItDoes) {
  const ByteTokenizer tokenizer({.texts = {"a", "\xe2\x96", "\x81", "\x81z"}});
  EXPECT_EQ(offsets_of(tokenizer, {258, 259, 260, 258}), (Offsets{0, 1, 1, 2}));
  EXPECT_EQ(offsets_of(tokenizer, {258, 259, 261, 258}), (Offsets{0, 1, 1, 3}));
}

TEST(TextOffsets, WhatIsNoCharacterIsOneOrOneForEachByte) {
  // Two bytes of a character that does not come, and one that begins none.
  const std::vector<std::string> texts{"\xe2\x96", "a", "\x81"};
  const ByteTokenizer joined({.texts = texts});
  EXPECT_EQ(offsets_of(joined, {258, 259, 260, 259}), (Offsets{0, 1, 2, 3}));
  const ByteTokenizer each({.texts = texts, .replaces_each_byte = true});
  EXPECT_EQ(offsets_of(each, {258, 259, 260, 259}), (Offsets{0, 2, 3, 4}));
}

TEST(TextOffsets, ControlTokensCountWhereTheyAreShown) {
  const ByteTokenizer tokenizer({.texts = {"a"}});
  EXPECT_EQ(offsets_of(tokenizer, {0, 258, 1, 258}), (Offsets{0, 0, 1, 1}));
  EXPECT_EQ(offsets_of(tokenizer, {0, 258, 1, 258}, true, true), (Offsets{0, 3, 4, 8}));
}

TEST(TextOffsets, TheSpaceInFrontIsStrippedOnce) {
  const ByteTokenizer tokenizer({.texts = {" Once", " upon"}, .strips_leading_space = true});
  EXPECT_EQ(offsets_of(tokenizer, {0, 258, 259, 258}, false), (Offsets{0, 0, 4, 9}));
  EXPECT_EQ(offsets_of(tokenizer, {0, 258, 259, 258}, false, true), (Offsets{0, 3, 8, 13}));
  EXPECT_EQ(offsets_of(tokenizer, {0, 258, 259, 258}, true), (Offsets{0, 0, 5, 10}));
}

// All that becomes of the ids.
std::string text_of(IncrementalDecoder decoder, const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) {
    text += decoder.add(id);
  }
  text += decoder.finish();
  return text;
}

// Whatever the bytes. A token begins a character of its own if it says the same alone as after what
// is in front of it.
TEST(TextOffsets, AgreeWithTheDecoderOnRandomBytes) {
  constexpr unsigned kSeed = 17;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const std::vector<std::string> pieces{"a",    "\xc3",     "\xbc",         "\xe2", "\x96",
                                        "\x81", "\xe2\x96", "\xf0\x9f\x98", "\x80", "\xff",
                                        " b",   "\xed",     "\xa0"};
  const ByteTokenizer joining({.texts = pieces});
  const IncrementalDecoder start(joining, true);
  for (const bool each : {false, true}) {
    const ByteTokenizer tokenizer({.texts = pieces, .replaces_each_byte = each});
    for (int round = 0; round < 500; ++round) {
      std::vector<int32_t> before;
      int64_t certain = 0;
      IncrementalDecoder decoder(tokenizer, true);
      TextOffsets offsets(tokenizer, true, false);
      for (int i = 0; i < 8; ++i) {
        const int32_t id =
            ByteTokenizer::kFirstText + static_cast<int32_t>(random() % pieces.size());
        const std::string front = text_of(start, before);
        before.push_back(id);
        const bool begins = text_of(start, before) == front + text_of(start, {id});
        const int64_t whole = certain + count_characters(text_of(decoder, {}));
        EXPECT_EQ(offsets.add(id), begins ? whole : certain) << round << " " << i;
        certain += count_characters(decoder.add(id));
      }
    }
  }
}

}  // namespace
}  // namespace sparsellm
