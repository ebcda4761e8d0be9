#include "tokenizer/token_decoder.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tokenizer/bpe_symbols.h"

namespace sparsellm {
namespace {

TEST(TokenDecoder, Steps) {
  const DecoderOptions::Replace spaces{"\u2581", " "};
  struct Case {
    DecoderOptions options;
    std::string_view token;
    std::string_view bytes;
    std::string_view first_bytes;
  };
  const Case cases[] = {
      {{}, "\u2581a", "\u2581a", "\u2581a"},
      {{.steps = {spaces}}, "\u2581a\u2581\u2581", " a  ", " a  "},
      {{.steps = {spaces}, .strip_leading_space = true}, "\u2581\u2581a", "  a", " a"},
      {{.steps = {spaces}, .strip_leading_space = true}, "a", "a", "a"},
      {{.steps = {DecoderOptions::Metaspace{"\u2581", true}}}, "\u2581\u2581a\u2581", "  a ", "a"},
      {{.steps = {DecoderOptions::Metaspace{"\u2581", false}}}, "\u2581a", " a", " a"},
      {{.steps = {DecoderOptions::Replace{"ab", "b"}, DecoderOptions::Replace{"b", "c"}}},
       "aabb",
       "acc",
       "acc"},
      {{.byte_fallback = true}, "<0x0A>", "\n", "\n"},
      {{.byte_fallback = true}, "<0xe9>", "\xe9", "\xe9"},
      {{.byte_fallback = true}, "<0x0A>b", "<0x0A>b", "<0x0A>b"},
      {{.byte_fallback = true}, "<0xG0>", "<0xG0>", "<0xG0>"},
      {{.byte_fallback = true}, "<0x 1>", "<0x 1>", "<0x 1>"},
      {{.byte_fallback = true}, "<0x1->", "<0x1->", "<0x1->"},
      {{.byte_fallback = true, .strip_leading_space = true}, "<0x20>", " ", ""},
      {{}, "<0x0A>", "<0x0A>", "<0x0A>"},
      {{.byte_level = true}, "\u0120a\u00e9", " a\xe9", " a\xe9"},
      {{.byte_level = true}, "\u65e5 x", "\u65e5 x", "\u65e5 x"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(&c - cases);
    const TokenDecoder decoder(c.options);
    EXPECT_EQ(decoder.bytes(c.token), c.bytes);
    EXPECT_EQ(decoder.first_bytes(c.token), c.first_bytes);
    EXPECT_TRUE(decoder.strips_leading_space() || c.bytes == c.first_bytes);
    EXPECT_EQ(decoder.has_byte_fallback(), c.options.byte_fallback);
  }
}

TEST(TokenDecoder, BytesAndTheirTokens) {
  for (int byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(byte_of_token(byte_token(static_cast<uint8_t>(byte))), byte);
  }
  EXPECT_EQ(byte_token(0x0a), "<0x0A>");
}

}  // namespace
}  // namespace sparsellm
