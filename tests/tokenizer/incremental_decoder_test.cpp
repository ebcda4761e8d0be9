#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace sparsellm {
namespace {

// Tokens with given bytes; an empty one stands for a control token.
class FakeTokenizer : public Tokenizer {
 public:
  explicit FakeTokenizer(std::vector<std::string> tokens, bool strips = false)
      : tokens_(std::move(tokens)), strips_(strips) {}

  std::vector<int32_t> encode(std::string_view, const EncodeOptions&) const override { return {}; }
  std::string token_bytes(int32_t id, bool) const override {
    return id >= 0 && id < vocab_size() ? tokens_[id] : "";
  }
  bool strips_leading_space() const override { return strips_; }
  int64_t vocab_size() const override { return static_cast<int64_t>(tokens_.size()); }
  std::optional<int32_t> bos_id() const override { return {}; }
  std::optional<int32_t> eos_id() const override { return {}; }

  std::vector<int32_t> all_ids() const {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      ids.push_back(static_cast<int32_t>(i));
    }
    return ids;
  }

 private:
  std::vector<std::string> tokens_;
  bool strips_;
};

// What each token brings, and at last what finish() does.
std::vector<std::string> stream(const FakeTokenizer& tokenizer, bool continues) {
  IncrementalDecoder decoder(tokenizer, continues);
  std::vector<std::string> texts;
  for (int32_t id : tokenizer.all_ids()) {
    texts.push_back(decoder.add(id));
  }
  texts.push_back(decoder.finish());
  return texts;
}

TEST(IncrementalDecoder, EmitsWholeCharacters) {
  struct Case {
    std::vector<std::string> tokens;
    std::vector<std::string> texts;
  };
  const Case cases[] = {
      {{}, {""}},
      {{"a", "b"}, {"a", "b", ""}},
      {{"", "a", ""}, {"", "a", "", ""}},
      {{"\xc3", "\xaf"}, {"", "\xc3\xaf", ""}},
      {{"\xf0", "\x9f", "\x98", "\x80"}, {"", "", "", "\xf0\x9f\x98\x80", ""}},
      {{"a\xe2\x82", "\xacz"}, {"a", "\xe2\x82\xacz", ""}},
      {{"\xf0\x9f", "", "\x98\x80"}, {"", "", "\xf0\x9f\x98\x80", ""}},
      {{"\xe2\x82"}, {"", "\ufffd"}},
      {{"\xe2", "a"}, {"", "\ufffda", ""}},
      {{"\xe2\x82", "\xe2"}, {"", "\ufffd", "\ufffd"}},
      {{"\x80", "\xff"}, {"\ufffd", "\ufffd", ""}},
      {{"\xed\xa0\x80"}, {"\ufffd\ufffd\ufffd", ""}},
      // The example of the Unicode Standard, section 3.9, for maximal subparts.
      {{"\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64"},
       {"a\ufffd\ufffd\ufffdb\ufffdc\ufffd\ufffdd", ""}},
      {{"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"}, {"\ufffd\ufffd\ufffd\ufffdA", ""}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(&c - cases);
    EXPECT_EQ(stream(FakeTokenizer(c.tokens), false), c.texts);
  }
}

TEST(IncrementalDecoder, StripsOneLeadingSpace) {
  struct Case {
    std::vector<std::string> tokens;
    std::vector<std::string> texts;
  };
  const Case cases[] = {
      {{" a", " b"}, {"a", " b", ""}}, {{"", " a"}, {"", "a", ""}},
      {{" ", " a"}, {"", " a", ""}},   {{"  a"}, {" a", ""}},
      {{"a", " b"}, {"a", " b", ""}},  {{"\xc3", " "}, {"", "\ufffd ", ""}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(&c - cases);
    EXPECT_EQ(stream(FakeTokenizer(c.tokens, true), false), c.texts);
  }
  EXPECT_EQ(stream(FakeTokenizer({" a", " b"}, true), true),
            (std::vector<std::string>{" a", " b", ""}));
}

// In the way of byte fallback: U+FFFD for each byte, and whole characters stay.
TEST(IncrementalDecoder, ReplacesEachByte) {
  class ByteTokenizer : public FakeTokenizer {
   public:
    using FakeTokenizer::FakeTokenizer;
    bool replaces_each_byte() const override { return true; }
  };
  struct Case {
    std::vector<std::string> tokens;
    std::vector<std::string> texts;
  };
  const Case cases[] = {
      {{"\xe6", "\x97", "\xa5"}, {"", "", "\u65e5", ""}},
      {{"\xe6", "\x97", "a"}, {"", "", "\ufffd\ufffda", ""}},
      {{"\xe6", "\x97"}, {"", "", "\ufffd\ufffd"}},
      {{"\xff", "\xf0", "\x9f", "\x98", "\xf0"},
       {"\ufffd", "", "", "", "\ufffd\ufffd\ufffd", "\ufffd"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(&c - cases);
    EXPECT_EQ(stream(ByteTokenizer(c.tokens), false), c.texts);
  }
}

// A tokenizer may strip more than a space of what begins a text, and all of it.
TEST(IncrementalDecoder, StripsWhatTheTokenizerSays) {
  class StrippingTokenizer : public FakeTokenizer {
   public:
    using FakeTokenizer::FakeTokenizer;
    std::string first_token_bytes(int32_t id) const override {
      const std::string bytes = token_bytes(id, false);
      return bytes.substr(std::min(bytes.find_first_not_of(' '), bytes.size()));
    }
  };
  const std::vector<std::string> spaces{"", "  ", " a"};
  EXPECT_EQ(stream(StrippingTokenizer(spaces, true), false),
            (std::vector<std::string>{"", "", " a", ""}));
  EXPECT_EQ(stream(StrippingTokenizer(spaces, true), true),
            (std::vector<std::string>{"", "  ", " a", ""}));
  EXPECT_EQ(stream(StrippingTokenizer({"  a"}, true), false), (std::vector<std::string>{"a", ""}));
}

TEST(IncrementalDecoder, IdsWithoutATokenAddNothing) {
  const FakeTokenizer tokenizer({" \xc3", "\xaf"}, true);
  EXPECT_EQ(decode(tokenizer, {-1, 0, 2, INT32_MAX, 1, INT32_MIN}), "\xc3\xaf");
}

TEST(IncrementalDecoder, StreamIsTheTextAtOnce) {
  constexpr std::string_view kBytes[] = {"a",    " ",    "\xc3", "\xaf", "\xe2", "\x82",
                                         "\xac", "\xf0", "\x9f", "\x98", "\x80", "\xff"};
  std::mt19937_64 random(1);
  for (int repeat = 0; repeat < 2000; ++repeat) {
    std::vector<std::string> tokens(random() % 12);
    for (std::string& token : tokens) {
      for (auto count = random() % 4; count > 0; --count) {
        token += kBytes[random() % std::size(kBytes)];
      }
    }
    const FakeTokenizer tokenizer(tokens, repeat % 2 == 0);
    std::string streamed;
    for (const std::string& text : stream(tokenizer, false)) {
      ASSERT_NO_THROW(check_text(text));
      streamed += text;
    }
    ASSERT_EQ(streamed, decode(tokenizer, tokenizer.all_ids()));
  }
}

}  // namespace
}  // namespace sparsellm
