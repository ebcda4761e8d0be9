// Long texts: cut into pieces without a change to the ids, in bounded memory, and refused or
// interrupted in time.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/mapped_file.h"
#include "tests/testing/memory_limit.h"
#include "tests/testing/paths.h"
#include "tests/testing/random.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"
#include "tests/tokenizer/sentencepiece_writer.h"
#include "tokenizer/bpe.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/regex.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/sentencepiece_cuts.h"

namespace sparsellm {
namespace {

using testing::bytes_field;
using testing::exit_with_memory;
using testing::number_field;
using testing::piece;
using testing::Random;
using testing::throws_error;
using Ids = std::vector<int32_t>;
using PieceType = SentencePieceModel::PieceType;

constexpr const char* kTokenizers[] = {"models/fable-llama-relu-8m", "models/fable-opt-8m",
                                       "tiny/llama3", "tiny/llama_gelu_tanh", "tiny/opt_gelu"};
// Of tests/data/tokenizers; words are not cut in the first two.
constexpr const char* kJsonTokenizers[] = {"llama2", "mistral", "metaspace_always", "gemma",
                                           "qwen2"};

std::string repeated(std::string_view part, size_t bytes) {
  std::string text;
  while (text.size() < bytes) {
    text += part;
  }
  return text;
}

// --- byte-pair encoding in windows ---

// Tokens of the letters a to d and the unknown token, each made of two that are there already.
BpeModel random_bpe(Random& random, std::optional<std::string> unknown_token) {
  BpeModel model;
  std::vector<std::string> tokens{"a", "b", "c", "d"};
  if (unknown_token) {
    tokens.push_back(*unknown_token);
  }
  model.unknown_token = std::move(unknown_token);
  for (const std::string& token : tokens) {
    model.vocabulary.emplace(token, static_cast<int32_t>(model.vocabulary.size()));
  }
  const int64_t merges = random.below(60);
  for (int64_t i = 0; i < merges; ++i) {
    const auto any = [&] {
      return tokens[static_cast<size_t>(random.below(static_cast<int64_t>(tokens.size())))];
    };
    const std::string left = any();
    const std::string right = any();
    if (left.size() + right.size() > 12) {
      continue;
    }
    if (model.vocabulary.emplace(left + right, static_cast<int32_t>(model.vocabulary.size()))
            .second) {
      tokens.push_back(left + right);
    }
    // In front of others at times, so that a merge may have a lower rank than those of its parts.
    model.merges.insert(model.merges.begin() + random.below(std::ssize(model.merges) + 1),
                        {left, right});
  }
  return model;
}

std::string random_letters(Random& random, std::string_view letters, int64_t length) {
  std::string word;
  while (std::ssize(word) < length) {
    // Runs and periods are where one merge depends on another far away.
    std::string period;
    for (int64_t i = random.below(4); i >= 0; --i) {
      period += letters[static_cast<size_t>(random.below(static_cast<int64_t>(letters.size())))];
    }
    for (int64_t i = random.below(random.below(20) + 1); i >= 0; --i) {
      word += period;
    }
  }
  return word;
}

TEST(LongTexts, WindowsOfAWordDoNotChangeItsIds) {
  Random random(1);
  for (int trial = 0; trial < 400; ++trial) {
    SCOPED_TRACE(trial);
    const std::optional<std::string> unknown_tokens[] = {{}, {}, "?", "ab", "\u65e5"};
    BpeModel model = random_bpe(random, unknown_tokens[trial % 5]);
    model.fuse_unknown = random.below(2) == 0;
    const std::string word = random_letters(random, model.unknown_token ? "abcdxy" : "abcd", 600);
    Ids whole;
    BytePairEncoder(model, "test", 1 << 30).encode(word, whole);
    for (const int32_t window : {1, 2, 3, 5, 16, 50, 300}) {
      Ids ids;
      BytePairEncoder(model, "test", window).encode(word, ids);
      ASSERT_EQ(ids, whole) << "window " << window << " of " << word;
    }
  }
}

// Tokens of letters, of an unknown token and of bytes, which begin with each other's texts.
BpeModel random_characters(Random& random, std::optional<std::string> unknown_token,
                           bool byte_fallback) {
  BpeModel model = random_bpe(random, std::move(unknown_token));
  model.symbols = BpeModel::Symbols::characters;
  model.byte_fallback = byte_fallback;
  const auto id = [&] { return static_cast<int32_t>(model.vocabulary.size()); };
  std::vector<std::string> tokens{"a", "<", "0", "x", "\u00e9"};
  for (int byte = 0; byte < 256 && byte_fallback; ++byte) {
    model.vocabulary.emplace(byte_token(static_cast<uint8_t>(byte)), id());
  }
  for (const std::string& token : tokens) {
    model.vocabulary.emplace(token, id());
  }
  if (byte_fallback) {
    tokens.insert(tokens.end(), {"<0xE6>", "<0x97>", "<0xA5>", "<0xF0>"});
  }
  for (int64_t i = random.below(40); i > 0; --i) {
    const auto any = [&] { return tokens[static_cast<size_t>(random.below(std::ssize(tokens)))]; };
    const std::string left = any();
    const std::string right = any();
    if (left.size() + right.size() > 30) {
      continue;
    }
    if (model.vocabulary.emplace(left + right, id()).second) {
      tokens.push_back(left + right);
    }
    model.merges.insert(model.merges.begin() + random.below(std::ssize(model.merges) + 1),
                        {left, right});
  }
  return model;
}

TEST(LongTexts, WindowsOfCharactersDoNotChangeIds) {
  Random random(5);
  const std::vector<std::string> parts{
      "a", "b", "c", "d", "<", "0", "x", "\u00e9", "\u65e5", "\u672c", "\xf0\x9f\x98\x80", "?"};
  for (int trial = 0; trial < 400; ++trial) {
    SCOPED_TRACE(trial);
    const std::optional<std::string> unknown_tokens[] = {"?", "ab", "<unk>", "\u65e5"};
    const bool byte_fallback = trial % 2 == 0;
    BpeModel model = random_characters(random, unknown_tokens[trial / 2 % 4], byte_fallback);
    model.fuse_unknown = random.below(2) == 0;
    std::string word;
    while (word.size() < 600) {
      std::string period;
      for (int64_t i = random.below(4); i >= 0; --i) {
        period += parts[static_cast<size_t>(random.below(std::ssize(parts)))];
      }
      for (int64_t i = random.below(random.below(20) + 1); i >= 0; --i) {
        word += period;
      }
    }
    Ids whole;
    BytePairEncoder(model, "test", 1 << 30).encode(word, whole);
    for (const int32_t window : {1, 2, 3, 5, 16, 50, 300}) {
      Ids ids;
      BytePairEncoder(model, "test", window).encode(word, ids);
      ASSERT_EQ(ids, whole) << "window " << window << " of " << word;
    }
  }
}

TEST(LongTexts, EveryWindowIsACheckpoint) {
  BpeModel model;
  model.vocabulary = {{"a", 0}, {"aa", 1}, {"aaaa", 2}};
  model.merges = {{"a", "a"}, {"aa", "aa"}};
  Ids ids;
  int checkpoints = 0;
  BytePairEncoder(model, "test", 64).encode(std::string(64'003, 'a'), ids, [&] { ++checkpoints; });
  EXPECT_EQ(ids.size(), 16'002u);
  EXPECT_GE(checkpoints, 900);
  EXPECT_LE(checkpoints, 2'100);
}

TEST(LongTexts, AWordThatIsOneWindowHasCheckpointsToo) {
  // Whatever follows may join the last symbol, and then the one before, and so on.
  BpeModel model;
  model.vocabulary = {{"a", 0}, {"aa", 1}, {"aaa", 2}};
  model.merges = {{"a", "a"}, {"aa", "a"}};
  Ids ids;
  int checkpoints = 0;
  BytePairEncoder(model, "test").encode(std::string(4'000'000, 'a'), ids, [&] { ++checkpoints; });
  EXPECT_EQ(ids, Ids(2'000'000, 1));
  EXPECT_GE(checkpoints, 10);
}

// --- SentencePiece in pieces ---

struct SentencePieceOptions {
  bool byte_fallback = true;
  bool remove_extra_whitespaces = false;
};

std::string sentencepiece(std::string_view pieces, const SentencePieceOptions& options) {
  std::string bytes = piece("<unk>", 0, PieceType::unknown) + piece("<s>", 0, PieceType::control) +
                      piece("</s>", 0, PieceType::control);
  for (int byte = 0; options.byte_fallback && byte < 256; ++byte) {
    bytes += piece(fmt::format("<0x{:02X}>", byte), 0, PieceType::byte);
  }
  return bytes + std::string(pieces) +
         bytes_field(2, number_field(3, 2) + number_field(35, options.byte_fallback ? 1 : 0)) +
         bytes_field(
             3, number_field(3, 1) + number_field(4, options.remove_extra_whitespaces ? 1 : 0));
}

std::unique_ptr<Tokenizer> load(std::string_view model, const TokenizerConfig& config = {}) {
  const testing::TempDir folder;
  return load_sentencepiece(folder.write("tokenizer.model", model), config);
}

Ids encode(const Tokenizer& tokenizer, std::string_view text) {
  return tokenizer.encode(text, {.add_special_tokens = false});
}

// With a piece of this type no text is cut; this one is in none.
std::string never_cut() { return piece("\x01\x02", -1, PieceType::unused); }

const std::vector<std::string> kCharacters{"a",      "b", "c", "\u2581", " ",
                                           "\u00e9", "z", "y", "\u65e5", "\xf0\x9f\x98\x80"};

TEST(LongTexts, PiecesOfATextDoNotChangeItsIds) {
  Random random(2);
  const auto any_of = [&](const auto& list) {
    return list[static_cast<size_t>(random.below(std::ssize(list)))];
  };
  for (int trial = 0; trial < 48; ++trial) {
    SCOPED_TRACE(trial);
    const SentencePieceOptions options{.byte_fallback = trial % 2 == 0,
                                       .remove_extra_whitespaces = trial % 4 >= 2};
    std::vector<std::string> texts{"a", "b", "c", "\u2581", "\u00e9"};
    std::string pieces;
    for (const std::string& text : texts) {
      pieces += piece(text, -1);
    }
    for (int64_t i = random.below(25); i > 0; --i) {
      const std::string text = any_of(texts) + any_of(texts);
      if (text.size() <= 12 && std::find(texts.begin(), texts.end(), text) == texts.end()) {
        texts.push_back(text);
        const bool is_symbol = trial % 3 == 0 && random.below(5) == 0;
        pieces += piece(text, -static_cast<float>(random.below(8)),
                        is_symbol ? PieceType::user_defined : PieceType::normal);
      }
    }
    std::string text;
    while (text.size() < 70'000) {
      const std::string part = any_of(kCharacters);
      for (int64_t i = random.below(random.below(30) + 1); i >= 0; --i) {
        text += part;
      }
    }
    text += "  \u2581 ";
    const auto cut = load(sentencepiece(pieces, options));
    const auto whole = load(sentencepiece(pieces + never_cut(), options));
    EXPECT_EQ(encode(*cut, text), encode(*whole, text));
  }
}

TEST(LongTexts, CutsAreWhereNoPieceReaches) {
  SentencePieceModel model;
  model.remove_extra_whitespaces = false;
  for (const char* text : {"<unk>", "ab", "\u2581a", "b\u2581\u2581"}) {
    model.pieces.push_back({.text = text});
  }
  model.pieces[0].type = PieceType::unknown;
  const SentencePieceCuts cuts(model);
  ASSERT_TRUE(cuts.possible());
  const auto end = [&](std::string_view text, size_t least) { return cuts.piece_end(text, least); };
  EXPECT_EQ(end("", 0), 0u);
  EXPECT_EQ(end("ab", 5), 2u);
  EXPECT_EQ(end("ab ab ab", 0), 8u);  // all of it may be joined
  EXPECT_EQ(end("abaab", 0), 2u);     // b|a
  EXPECT_EQ(end("abaab", 2), 3u);     // never in front of what is requested
  EXPECT_EQ(end("ab ax", 0), 4u);     // a|x
  EXPECT_EQ(end("ab<unk>", 0), 2u);   // no text becomes a control token
  EXPECT_EQ(end("\u00e9a", 1), 2u);   // never inside a character
  EXPECT_EQ(end("a\u00e9", 2), 3u);
  EXPECT_EQ(end("b\u2581 a", 0), 6u);  // a space is its symbol

  const auto possible = [&](std::string text, PieceType type, bool removes_spaces) {
    SentencePieceModel other = model;
    other.remove_extra_whitespaces = removes_spaces;
    other.pieces.push_back({.text = std::move(text), .type = type});
    return SentencePieceCuts(other).possible();
  };
  EXPECT_TRUE(possible("x y", PieceType::normal, true));
  EXPECT_TRUE(possible("x y", PieceType::user_defined, false));
  EXPECT_FALSE(possible("x y", PieceType::user_defined, true));
  EXPECT_TRUE(possible("\xff", PieceType::normal, false));
  EXPECT_FALSE(possible("\xff", PieceType::user_defined, false));
  EXPECT_FALSE(possible("xy", PieceType::unused, false));
}

TEST(LongTexts, ExtraSpaces) {
  EXPECT_EQ(without_extra_spaces(""), "");
  EXPECT_EQ(without_extra_spaces("   "), "");
  EXPECT_EQ(without_extra_spaces("  a  b\n   c "), "a b\n c");
  EXPECT_EQ(without_extra_spaces("\u2581 a \u2581  \u2581"), "\u2581 a");
}

TEST(LongTexts, ARunOfUnknownCharactersIsOneToken) {
  const auto tokenizer =
      load(sentencepiece(piece("a", -1) + piece("\u2581a", -1), {.byte_fallback = false}));
  EXPECT_EQ(tokenizer->max_token_bytes(), std::nullopt);
  const std::string run = repeated("\u65e5\u672c", 3 << 20);
  EncodeOptions few{.add_special_tokens = false, .max_tokens = 3};
  EXPECT_EQ(tokenizer->encode("a" + run + "a", few), (Ids{4, 0, 3}));
  few.max_tokens = 2;
  EXPECT_THROW(tokenizer->encode("a" + run + "a", few), TooManyTokens);
}

// --- regular expressions ---

std::vector<std::string_view> split(std::string_view pattern, std::string_view text) {
  std::vector<std::string_view> pieces;
  Regex(pattern).split(text, pieces);
  return pieces;
}

TEST(LongTexts, MatchesOfAnyLength) {
  Random random(3);
  const std::vector<std::string> letters{"a", "\u00e9", "\u65e5", "Z"};
  for (int trial = 0; trial < 200; ++trial) {
    SCOPED_TRACE(trial);
    const int64_t longest = trial % 2 == 0 ? 20 : 1500;
    std::string text;
    std::vector<std::string> words;  // of letters, and of what else there is
    std::vector<std::string> numbers;
    const auto add = [&](std::vector<std::string>& list, std::string part) {
      text += part;
      list.push_back(std::move(part));
    };
    std::string gap;
    for (int64_t part = random.below(30) + 1; part > 0; --part) {
      std::string word;
      for (int64_t i = random.below(longest) + 1; i > 0; --i) {
        word += letters[static_cast<size_t>(random.below(4))];
      }
      gap += word;
      add(words, std::move(word));
      if (random.below(2) == 0) {
        const auto count = static_cast<size_t>(random.below(longest) + 1);
        std::string digits(count, '7');
        numbers.push_back(std::exchange(gap, {}));
        numbers.push_back(digits);
        for (size_t i = 0; i < count; i += 3) {
          words.push_back(digits.substr(i, 3));
        }
        text += digits;
      } else {
        const auto count = static_cast<size_t>(random.below(longest) + 1);
        const std::string spaces(count, ' ');
        if (count > 1) {
          add(words, spaces.substr(1));
        }
        add(words, " ");
        gap += spaces;
      }
    }
    add(words, "a");
    numbers.push_back(gap + "a");
    const auto strings = [](const std::vector<std::string_view>& views) {
      return std::vector<std::string>(views.begin(), views.end());
    };
    EXPECT_EQ(strings(split(R"(\p{L}+|\p{N}{1,3}|\s+(?!\S)|\s+)", text)), words);
    EXPECT_EQ(strings(split(R"(\s*[\r\n]+|\p{L}+|\p{N}{1,3}|\s+(?!\S)|\s)", text)), words);
    EXPECT_EQ(strings(split(R"(\p{N}+)", text)), numbers);
  }
}

TEST(LongTexts, OneLimitOfStepsForAText) {
  struct Case {
    std::string_view pattern;
    char letter;
  };
  const Case cases[] = {
      {R"(\s*[\r\n]+)", ' '},  // backtracks from each place
      {R"(a+[bc])", 'a'},      // runs on from each place
      {R"(a++b|a)", 'a'},     {R"((?>a+)b|a)", 'a'}, {R"((?:a+b|a)+c|a)", 'a'},
      {R"(a(?=a+b)|a)", 'a'}, {R"(.*?b|a)", 'a'},
  };
  const std::string tail = "x";
  for (const Case& c : cases) {
    SCOPED_TRACE(c.pattern);
    const std::string text(200'000, c.letter);
    EXPECT_TRUE(throws_error([&] { split(c.pattern, text + tail); }, "limit exceeded"));
    EXPECT_EQ(split(c.pattern, std::string(100, c.letter) + tail).back().back(), 'x');
  }
  // Many texts that are short enough each, but not together.
  const Regex regex(R"(a++b|a)");
  const std::string word(5'000, 'a');
  std::vector<std::string_view> pieces;
  EXPECT_TRUE(throws_error([&] { regex.split(word, pieces); }, "limit exceeded"));
  const std::string shorter(600, 'a');
  MatchLimit limit(shorter.size());
  regex.split(shorter, limit, [](std::string_view, bool) {});
  EXPECT_TRUE(throws_error(
      [&] {
        for (int i = 0; i < 1000; ++i) {
          regex.split(shorter, limit, [](std::string_view, bool) {});
        }
      },
      "failed on a text of 600 bytes: limit exceeded of 1019200 steps"));
}

struct Stop {};

TEST(LongTexts, PollsInTheMiddleOfAMatch) {
  const Regex regex(R"(\s*[\r\n]+|\s+)");
  const std::string text(1'000'000, ' ');
  int polls = 0;
  MatchLimit counting(text.size(), [&] { ++polls; });
  regex.split(text, counting, [](std::string_view, bool) {});  // one match
  EXPECT_GE(polls, 10);
  MatchLimit stopping(text.size(), [&] {
    if (--polls < 5) {
      throw Stop();
    }
  });
  EXPECT_THROW(regex.split(text, stopping, [](std::string_view, bool) {}), Stop);
  EXPECT_EQ(polls, 4);
}

TEST(LongTexts, ManySplitPatternsAreRefused) {
  PretokenizerOptions options;
  options.steps.assign(Pretokenizer::kMaxSteps, SplitStep{.pattern = "a"});
  EXPECT_NO_THROW(Pretokenizer{options});
  options.steps.emplace_back(SplitStep{.pattern = "a"});
  EXPECT_TRUE(throws_error([&] { Pretokenizer{options}; }, "in 101 steps; at most 100"));
}

// --- limits and polls of tokenizers ---

TEST(LongTexts, EveryTokenizerStopsAndPolls) {
  const std::string text = read_text_file(testing::data("text/peter_pan.txt"), 1 << 20);
  for (const char* name : kTokenizers) {
    SCOPED_TRACE(name);
    const auto tokenizer = load_tokenizer(testing::data(name));
    const auto count = std::ssize(tokenizer->encode(text, {}));
    EncodeOptions options{.max_tokens = count};
    EXPECT_EQ(std::ssize(tokenizer->encode(text, options)), count);
    options.max_tokens = count - 1;
    EXPECT_TRUE(throws_error(
        [&] { tokenizer->encode(text, options); },
        fmt::format("the text of {} bytes has more than {} tokens", text.size(), count - 1)));
    int polls = 0;
    options = {.poll = [&] { ++polls; }};
    tokenizer->encode(text, options);
    EXPECT_GE(polls, 2);
    options.poll = [&] {
      if (--polls == 0) {
        throw Stop();
      }
    };
    EXPECT_THROW(tokenizer->encode(text, options), Stop);
    EXPECT_EQ(polls, 0);
  }
}

TEST(LongTexts, NoTokenHasMoreBytesThanTheLongest) {
  for (const char* name : kTokenizers) {
    SCOPED_TRACE(name);
    const auto tokenizer = load_tokenizer(testing::data(name));
    ASSERT_TRUE(tokenizer->max_token_bytes());
    int64_t longest = 0;
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      longest = std::max(longest, std::ssize(tokenizer->token_bytes(id, true)));
    }
    EXPECT_GE(*tokenizer->max_token_bytes(), longest);
    EXPECT_LE(*tokenizer->max_token_bytes(), 3 * longest);
    // What has too many bytes is refused before it is looked at, down to its UTF-8.
    EXPECT_THROW(tokenizer->encode(std::string(10 * *tokenizer->max_token_bytes() + 1, 'a'),
                                   {.add_special_tokens = false, .max_tokens = 10}),
                 TooManyTokens);
  }
}

TEST(LongTexts, BoundsOfSentencePiece) {
  const std::string pieces = piece("a", -1) + piece("\u2581\u2581\u2581", -1);
  const auto bound = [&](const SentencePieceOptions& options, const AddedToken& added = {}) {
    TokenizerConfig config;
    AddedToken token = added;
    token.id = 500;
    config.added_tokens = {token};
    return load(sentencepiece(pieces, options), config)->max_token_bytes();
  };
  EXPECT_EQ(bound({}), 9);
  EXPECT_EQ(bound({}, {.content = "<a-longer-token>"}), 16);
  EXPECT_EQ(bound({}, {.content = "<x>", .lstrip = true}), std::nullopt);
  EXPECT_EQ(bound({}, {.content = "<x>", .rstrip = true}), std::nullopt);
  EXPECT_EQ(bound({.byte_fallback = false}), std::nullopt);
  EXPECT_EQ(bound({.remove_extra_whitespaces = true}), std::nullopt);
}

std::optional<int64_t> byte_level_bound(const std::function<void(ByteLevelParts&)>& change) {
  ByteLevelParts parts;
  parts.source = "test";
  for (int byte = 0; byte < 256; ++byte) {
    parts.model.vocabulary.emplace(byte_symbol(static_cast<uint8_t>(byte)), byte);
  }
  parts.model.vocabulary.emplace("abc", 256);
  parts.model.vocabulary.emplace("<unk>", 257);
  parts.model.unknown_token = "<unk>";
  change(parts);
  return make_byte_level_tokenizer(parts)->max_token_bytes();
}

TEST(LongTexts, BoundsOfByteLevel) {
  const auto add = [](AddedToken token) {
    token.id = 300;
    return [token](ByteLevelParts& parts) { parts.special_tokens.added_tokens = {token}; };
  };
  EXPECT_EQ(byte_level_bound([](ByteLevelParts&) {}), 5);
  EXPECT_EQ(byte_level_bound(add({.content = "<dragon>"})), 8);
  EXPECT_EQ(byte_level_bound(add({.content = "<x>", .lstrip = true})), std::nullopt);
  EXPECT_EQ(byte_level_bound(add({.content = "<x>", .special = true, .rstrip = true})),
            std::nullopt);
  EXPECT_EQ(byte_level_bound([](ByteLevelParts& parts) { parts.model.vocabulary.erase("z"); }),
            std::nullopt);
}

TEST(LongTexts, WhiteSpaceThatATokenTakesAlongFits) {
  ByteLevelParts parts;
  parts.source = "test";
  for (int byte = 0; byte < 256; ++byte) {
    parts.model.vocabulary.emplace(byte_symbol(static_cast<uint8_t>(byte)), byte);
  }
  parts.special_tokens.added_tokens = {{.content = "<x>", .id = 300, .lstrip = true}};
  const auto tokenizer = make_byte_level_tokenizer(parts);
  EXPECT_EQ(tokenizer->encode(std::string(1 << 20, ' ') + "<x>",
                              {.add_special_tokens = false, .max_tokens = 1}),
            (Ids{300}));
}

// --- memory ---

TEST(LongTexts, TakeLittleMemory) {
  if (testing::kSanitized) {
    GTEST_SKIP() << "sanitizers reserve terabytes of address space";
  }
  constexpr size_t kBytes = 4'000'000;
  const std::string texts[] = {
      repeated(read_text_file(testing::data("text/peter_pan.txt"), 1 << 20), kBytes),
      repeated("a b ", kBytes),
      repeated("</s>x", kBytes),
  };
  for (const char* name : kTokenizers) {
    const auto tokenizer = load_tokenizer(testing::data(name));
    for (const std::string& text : texts) {
      SCOPED_TRACE(fmt::format("{} with {}", name, text.substr(0, 5)));
      // The ids take up to 16 MiB, and half as much or as much again while they grow.
      EXPECT_EXIT(exit_with_memory(56, [&] { tokenizer->encode(text, {.parse_special = true}); }),
                  ::testing::ExitedWithCode(0), "");
    }
    if (name != kTokenizers[0]) {
      SCOPED_TRACE(name);
      const std::string letters = repeated("acgtgtca", kBytes);
      EXPECT_EXIT(exit_with_memory(56, [&] { tokenizer->encode(letters, {}); }),
                  ::testing::ExitedWithCode(0), "");
    }
  }
}

TEST(LongTexts, NormalizedTextTakesLittleMore) {
  if (testing::kSanitized) {
    GTEST_SKIP() << "sanitizers reserve terabytes of address space";
  }
  constexpr size_t kBytes = 4'000'000;
  const std::string texts[] = {
      repeated(read_text_file(testing::data("text/peter_pan.txt"), 1 << 20), kBytes),
      repeated("e\u0301 \u1100\u1161", kBytes),
      repeated("x    ", kBytes),
      repeated("</s>x", kBytes),
  };
  for (const char* name : kJsonTokenizers) {
    const auto tokenizer = load_tokenizer(testing::data("tokenizers") / name);
    for (const std::string& text : texts) {
      SCOPED_TRACE(fmt::format("{} with {}", name, text.substr(0, 5)));
      EXPECT_EXIT(exit_with_memory(80, [&] { tokenizer->encode(text, {.parse_special = true}); }),
                  ::testing::ExitedWithCode(0), "");
    }
  }
}

TEST(LongTexts, ARunOfMarksInATokenizer) {
  const auto tokenizer = load_tokenizer(testing::data("tokenizers/qwen2"));
  EXPECT_EQ(decode(*tokenizer, tokenizer->encode(repeated("\u0307\u0323", 400'000), {})),
            repeated("\u0323", 200'000) + repeated("\u0307", 200'000));
}

TEST(LongTexts, JsonTokenizersStopAndPoll) {
  const std::string text = read_text_file(testing::data("text/peter_pan.txt"), 1 << 20);
  for (const char* name : kJsonTokenizers) {
    SCOPED_TRACE(name);
    const auto tokenizer = load_tokenizer(testing::data("tokenizers") / name);
    const auto count = std::ssize(tokenizer->encode(text, {}));
    EXPECT_EQ(std::ssize(tokenizer->encode(text, {.max_tokens = count})), count);
    EXPECT_THROW(tokenizer->encode(text, {.max_tokens = count - 1}), TooManyTokens);
    int polls = 3;
    const auto stop = [&] {
      if (--polls == 0) {
        throw Stop();
      }
    };
    EXPECT_THROW(tokenizer->encode(text, {.poll = stop}), Stop);
  }
}

}  // namespace
}  // namespace sparsellm
