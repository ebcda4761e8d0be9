#include "tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/testing/throws_error.h"
#include "tokenizer/bpe_symbols.h"
#include "tokenizer/byte_alphabet.h"

namespace sparsellm {
namespace {

using testing::throws_error;
using Merges = std::vector<std::pair<std::string, std::string>>;

// The letters a, b, c, d with the ids 0 to 3, then what the merges make, in their order.
BpeModel letters(const Merges& merges) {
  BpeModel model;
  model.vocabulary = {{"a", 0}, {"b", 1}, {"c", 2}, {"d", 3}};
  for (const auto& [left, right] : merges) {
    model.vocabulary.emplace(left + right, static_cast<int32_t>(model.vocabulary.size()));
  }
  model.merges = merges;
  return model;
}

std::vector<int32_t> encode(const BpeModel& model, std::string_view word) {
  std::vector<int32_t> ids;
  BytePairEncoder(model, "test").encode(word, ids);
  return ids;
}

// The tokens of a word, for comparisons that read well.
std::string tokens(const BpeModel& model, std::string_view word) {
  std::string text;
  for (int32_t id : encode(model, word)) {
    for (const auto& [token, token_id] : model.vocabulary) {
      if (token_id == id) {
        text += (text.empty() ? "" : " ") + token;
      }
    }
  }
  return text;
}

TEST(ByteAlphabet, StandsForEveryByteOnce) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string symbol = byte_symbol(static_cast<uint8_t>(byte));
    EXPECT_EQ(all.find(symbol), std::string::npos) << byte;
    EXPECT_EQ(bytes_of_symbols(symbol), std::string(1, static_cast<char>(byte)));
    all += symbol;
  }
  EXPECT_EQ(byte_symbol('A'), "A");
  EXPECT_EQ(byte_symbol('~'), "~");
  EXPECT_EQ(byte_symbol(0), "\u0100");
  EXPECT_EQ(byte_symbol('\n'), "\u010a");
  EXPECT_EQ(byte_symbol(' '), "\u0120");
  EXPECT_EQ(byte_symbol(0x7f), "\u0121");
  EXPECT_EQ(byte_symbol(0xa0), "\u0142");
  EXPECT_EQ(byte_symbol(0xa1), "\u00a1");
  EXPECT_EQ(byte_symbol(0xad), "\u0143");
  EXPECT_EQ(byte_symbol(0xff), "\u00ff");

  EXPECT_EQ(bytes_of_symbols(""), "");
  EXPECT_EQ(bytes_of_symbols("\u0120\u00c3\u00af"), " \xc3\xaf");
  for (const char* text : {" ", "a b", "\u0144", "\u65e5", "\u00a0", "\n"}) {
    EXPECT_EQ(bytes_of_symbols(text), std::nullopt) << text;
  }
}

TEST(BytePairEncoder, MergesInTheOrderOfTheirRank) {
  struct Case {
    Merges merges;
    std::string_view word;
    std::string_view tokens;
  };
  const Case cases[] = {
      {{}, "", ""},
      {{}, "a", "a"},
      {{}, "abc", "a b c"},
      {{{"a", "b"}}, "ab", "ab"},
      {{{"a", "b"}}, "abab", "ab ab"},
      {{{"a", "b"}}, "ba", "b a"},
      // The leftmost of equal ranks.
      {{{"a", "a"}}, "aaa", "aa a"},
      {{{"a", "a"}}, "aaaaa", "aa aa a"},
      {{{"a", "a"}, {"aa", "a"}}, "aaaa", "aa aa"},
      {{{"a", "a"}, {"aa", "aa"}}, "aaaaaaa", "aaaa aa a"},
      // The lowest rank, wherever it is.
      {{{"b", "c"}, {"a", "b"}}, "abc", "a bc"},
      {{{"a", "b"}, {"b", "c"}}, "abc", "ab c"},
      {{{"b", "c"}, {"a", "b"}, {"a", "bc"}}, "abc", "abc"},
      {{{"c", "d"}, {"b", "c"}, {"a", "b"}}, "abcd", "ab cd"},
      // A merge that becomes possible goes before those of higher ranks.
      {{{"a", "b"}, {"ab", "c"}, {"c", "d"}}, "abcd", "abc d"},
      {{{"a", "b"}, {"c", "d"}, {"ab", "c"}}, "abcd", "ab cd"},
      {{{"a", "b"}, {"ab", "ab"}, {"abab", "c"}}, "ababcabab", "ababc abab"},
      // Of two merges of one pair the later one counts.
      {{{"a", "b"}, {"b", "c"}, {"a", "b"}}, "abc", "a bc"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(&c - cases);
    EXPECT_EQ(tokens(letters(c.merges), c.word), c.tokens);
  }
}

TEST(BytePairEncoder, IsTheDefinition) {
  std::mt19937_64 random(2);
  for (int repeat = 0; repeat < 300; ++repeat) {
    Merges merges;
    std::vector<std::string> pool = {"a", "b", "c", "d"};
    for (int i = 0; i < 12; ++i) {
      merges.emplace_back(pool[random() % pool.size()], pool[random() % pool.size()]);
      pool.push_back(merges.back().first + merges.back().second);
    }
    BpeModel model = letters({});
    for (const std::string& token : pool) {
      model.vocabulary.emplace(token, static_cast<int32_t>(model.vocabulary.size()));
    }
    model.merges = merges;

    std::string word;
    for (auto length = random() % 40; length > 0; --length) {
      word += "abcd"[random() % 4];
    }
    std::vector<std::string> parts;
    for (char c : word) {
      parts.emplace_back(1, c);
    }
    const auto rank_of = [&](size_t i) {
      size_t rank = merges.size();
      for (size_t j = 0; j < merges.size(); ++j) {
        if (merges[j] == std::pair(parts[i], parts[i + 1])) {
          rank = j;
        }
      }
      return rank;
    };
    while (true) {
      size_t best = 0;
      size_t best_rank = merges.size();
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        if (rank_of(i) < best_rank) {
          best = i;
          best_rank = rank_of(i);
        }
      }
      if (best_rank == merges.size()) {
        break;
      }
      parts[best] += parts[best + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    std::string expected;
    for (const std::string& part : parts) {
      expected += (expected.empty() ? "" : " ") + part;
    }
    ASSERT_EQ(tokens(model, word), expected) << "repeat " << repeat << ", word " << word;
  }
}

TEST(BytePairEncoder, LongRunOfOneLetter) {
  Merges merges;
  for (std::string run = "a"; run.size() <= 64; run += run) {
    merges.emplace_back(run, run);
  }
  const std::vector<int32_t> ids = encode(letters(merges), std::string(1'000'003, 'a'));
  // 1,000,003 = 7812 * 128 + 64 + 2 + 1
  ASSERT_EQ(ids.size(), 7812u + 3);
  EXPECT_EQ(ids.front(), 10);
  EXPECT_EQ(std::vector(ids.end() - 4, ids.end()), (std::vector<int32_t>{10, 9, 4, 0}));
}

TEST(BytePairEncoder, BytesAreSymbols) {
  BpeModel model;
  model.vocabulary = {{"\u0120", 7}, {"\u00c3", 8}, {"\u00af", 9}, {"\u00c3\u00af", 3}};
  model.merges = {{"\u00c3", "\u00af"}};
  EXPECT_EQ(encode(model, " \xc3\xaf"), (std::vector<int32_t>{7, 3}));
  EXPECT_EQ(encode(model, "\xaf\xc3"), (std::vector<int32_t>{9, 8}));
}

TEST(BytePairEncoder, IgnoreMergesTakesWholeWords) {
  BpeModel model = letters({{"a", "b"}});
  model.vocabulary.emplace("abcd", 9);
  model.vocabulary.emplace("\u65e5", 10);  // in no byte symbols, so no word is it
  EXPECT_EQ(encode(model, "abcd"), (std::vector<int32_t>{4, 2, 3}));
  model.ignore_merges = true;
  EXPECT_EQ(encode(model, "abcd"), (std::vector<int32_t>{9}));
  EXPECT_EQ(encode(model, "abcda"), (std::vector<int32_t>{4, 2, 3, 0}));
  EXPECT_EQ(encode(model, "ab"), (std::vector<int32_t>{4}));
}

TEST(BytePairEncoder, BytesWithoutAToken) {
  BpeModel model = letters({{"a", "b"}});
  EXPECT_TRUE(
      throws_error([&] { encode(model, "abz"); }, "the byte 0x7a of the text has no token"));
  EXPECT_TRUE(throws_error([&] { encode(model, "\xff"); }, "the byte 0xff"));
  model.unknown_token = "<unk>";  // not in the vocabulary
  EXPECT_TRUE(throws_error([&] { encode(model, "z"); }, "the byte 0x7a"));
  model.vocabulary.emplace("<unk>", 9);
  EXPECT_EQ(encode(model, "zzabzza"), (std::vector<int32_t>{9, 9, 4, 9, 9, 0}));
  model.fuse_unknown = true;
  EXPECT_EQ(encode(model, "zzabzza"), (std::vector<int32_t>{9, 4, 9, 0}));
}

// Symbols are characters: \u00e9 7, \u00e9a 8 and, if they are there, the bytes from 100 on.
BpeModel characters(bool byte_fallback) {
  BpeModel model = letters({});
  model.symbols = BpeModel::Symbols::characters;
  model.vocabulary.insert({{"\u00e9", 7}, {"\u00e9a", 8}});
  model.merges = {{"\u00e9", "a"}};
  model.byte_fallback = byte_fallback;
  for (int byte = 0; byte < 256 && byte_fallback; ++byte) {
    model.vocabulary.emplace(byte_token(static_cast<uint8_t>(byte)), 100 + byte);
  }
  return model;
}

TEST(BytePairEncoder, CharactersAreSymbols) {
  BpeModel model = characters(false);
  EXPECT_EQ(encode(model, "a\u00e9a\u00e9"), (std::vector<int32_t>{0, 8, 7}));
  EXPECT_TRUE(throws_error([&] { encode(model, "a\u65e5"); },
                           "the character U+65E5 of the text has no token"));
  EXPECT_FALSE(BytePairEncoder(model, "test").has_unknown());
  model.unknown_token = "<unk>";
  model.vocabulary.emplace("<unk>", 9);
  EXPECT_TRUE(BytePairEncoder(model, "test").has_unknown());
  EXPECT_EQ(encode(model, "\u65e5\u672ca"), (std::vector<int32_t>{9, 9, 0}));
  model.fuse_unknown = true;
  EXPECT_EQ(encode(model, "\u65e5\u672ca z"), (std::vector<int32_t>{9, 0, 9}));
}

TEST(BytePairEncoder, CharactersFallBackToBytes) {
  BpeModel model = characters(true);
  model.unknown_token = "a";  // never
  EXPECT_FALSE(BytePairEncoder(model, "test").has_unknown());
  EXPECT_EQ(encode(model, "a\u65e5\n\u00e9"),
            (std::vector<int32_t>{0, 100 + 0xe6, 100 + 0x97, 100 + 0xa5, 110, 7}));
  EXPECT_EQ(encode(model, "<0x0A>").size(), 6u);  // not a byte
  // Tokens of bytes are merged like others.
  model.vocabulary.emplace("<0xE6><0x97>", 400);
  model.merges.emplace_back("<0xE6>", "<0x97>");
  EXPECT_EQ(encode(model, "\u65e5\u65e5"),
            (std::vector<int32_t>{400, 100 + 0xa5, 400, 100 + 0xa5}));
}

TEST(BytePairEncoder, AllBytesOrNone) {
  BpeModel model = characters(true);
  model.vocabulary.erase("<0x7F>");
  EXPECT_TRUE(throws_error([&] { BytePairEncoder(model, "test"); },
                           "test: byte_fallback is true, but the vocabulary has tokens of 255 "
                           "bytes only, and no \"<0x7F>\""));
  model = characters(false);
  model.byte_fallback = true;
  EXPECT_TRUE(throws_error([&] { encode(model, "z"); }, "U+007A"));
}

TEST(BytePairEncoder, IgnoreMergesTakesWholeWordsOfCharacters) {
  BpeModel model = characters(true);
  model.ignore_merges = true;
  model.vocabulary.emplace("b\u65e5", 9);
  EXPECT_EQ(encode(model, "b\u65e5"), (std::vector<int32_t>{9}));
  EXPECT_EQ(encode(model, "b\u65e5b").size(), 5u);
  EXPECT_EQ(encode(model, "<0x0A>"), (std::vector<int32_t>{110}));  // as Hugging Face has it
}

TEST(BytePairEncoder, RefusesModelsThatDoNotFitTogether) {
  struct Case {
    BpeModel model;
    std::string_view message;
  };
  BpeModel same_id = letters({});
  same_id.vocabulary.emplace("x", 2);
  BpeModel no_left = letters({});
  no_left.merges = {{"x", "a"}};
  BpeModel no_right = letters({{"a", "b"}});
  no_right.merges.emplace_back("a", "y");
  BpeModel no_result = letters({});
  no_result.merges = {{"a", "b"}};
  const Case cases[] = {
      {{}, "test: the vocabulary is empty"},
      {same_id, "have the same id 2"},
      {no_left, R"(merge 1 ("x" and "a") needs the token "x", which is not there)"},
      {no_right, R"(merge 2 ("a" and "y") needs the token "y", which is not there)"},
      {no_result, R"(merge 1 ("a" and "b") needs the token "ab", which is not there)"},
  };
  for (const Case& c : cases) {
    EXPECT_TRUE(throws_error([&] { BytePairEncoder(c.model, "test"); }, c.message));
  }
}

}  // namespace
}  // namespace sparsellm
