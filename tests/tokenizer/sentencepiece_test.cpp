#include "tokenizer/sentencepiece.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/mapped_file.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"
#include "tests/tokenizer/sentencepiece_writer.h"
#include "tokenizer/sentencepiece_model.h"

namespace sparsellm {
namespace {

using testing::bytes_field;
using testing::number_field;
using testing::piece;
using testing::TempDir;
using testing::throws_error;
using PieceType = SentencePieceModel::PieceType;
using Ids = std::vector<int32_t>;

std::string trainer_spec(uint64_t model_type = 2, std::string_view more = {}) {
  return bytes_field(2, number_field(3, model_type) + number_field(35, 1) + std::string(more));
}
std::string normalizer_spec(std::string_view fields) { return bytes_field(3, fields); }

// As Llama has them: spaces stay as they are.
const std::string kLlamaNormalizer = normalizer_spec(number_field(3, 1) + number_field(4, 0));

// <unk> 0, <s> 1, </s> 2, the bytes from 3 on, then "\u2581" 259, "a" 260, "b" 261, "\u2581a" 262,
// "ab" 263, "\u2581ab" 264.
std::string pieces() {
  std::string bytes = piece("<unk>", 0, PieceType::unknown) + piece("<s>", 0, PieceType::control) +
                      piece("</s>", 0, PieceType::control);
  for (int byte = 0; byte < 256; ++byte) {
    bytes += piece(fmt::format("<0x{:02X}>", byte), 0, PieceType::byte);
  }
  return bytes + piece("\u2581", -1) + piece("a", -2) + piece("b", -3) + piece("\u2581a", -4) +
         piece("ab", -5) + piece("\u2581ab", -6);
}

std::string tiny_model() { return pieces() + trainer_spec() + kLlamaNormalizer; }

std::unique_ptr<Tokenizer> load(std::string_view model, const TokenizerConfig& config = {}) {
  const TempDir folder;
  return load_sentencepiece(folder.write("tokenizer.model", model), config);
}

Ids encode(const Tokenizer& tokenizer, std::string_view text, bool parse_special = false) {
  return tokenizer.encode(text, {.add_special_tokens = false, .parse_special = parse_special});
}

TEST(SentencePiece, EncodesLikeTheLibrary) {
  const auto tokenizer = load(tiny_model());
  struct Case {
    std::string_view text;
    Ids ids;
  };
  const Case cases[] = {
      {"", {}},
      {"a", {262}},
      {"ab", {264}},
      {" ab", {259, 264}},
      {"b ab", {259, 261, 264}},
      {"aab", {262, 263}},
      {"a  b ", {262, 259, 259, 261, 259}},
      {"ba\n", {259, 261, 260, 3 + 0x0a}},
      {"\u00e9", {259, 3 + 0xc3, 3 + 0xa9}},
      {"\u2581", {259, 259}},
      {std::string_view("a\0b", 3), {262, 3, 261}},
      {"<s>", {259, 3 + '<', 3 + 's', 3 + '>'}},
      {"<0x41>", {259, 3 + '<', 3 + '0', 3 + 'x', 3 + '4', 3 + '1', 3 + '>'}},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(encode(*tokenizer, c.text), c.ids) << c.text;
    EXPECT_EQ(decode(*tokenizer, c.ids), c.text == "\u2581" ? std::string_view(" ") : c.text);
  }
  EXPECT_TRUE(throws_error([&] { encode(*tokenizer, "a\xff"); }, "invalid UTF-8 at byte 1"));
}

TEST(SentencePiece, TokensAndIds) {
  const auto tokenizer = load(tiny_model());
  EXPECT_EQ(tokenizer->vocab_size(), 265);
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 2);
  EXPECT_TRUE(tokenizer->strips_leading_space());
  EXPECT_EQ(tokenizer->token_bytes(262), " a");
  EXPECT_EQ(tokenizer->token_bytes(3 + 0xe2), "\xe2");
  EXPECT_EQ(tokenizer->token_bytes(1), "");
  EXPECT_EQ(tokenizer->token_bytes(0), "");
  EXPECT_EQ(tokenizer->token_bytes(1, true), "<s>");
  EXPECT_EQ(tokenizer->token_bytes(0, true), "<unk>");
  for (int32_t id : {-1, 265, std::numeric_limits<int32_t>::max()}) {
    EXPECT_EQ(tokenizer->token_bytes(id, true), "") << id;
  }
  EXPECT_EQ(decode(*tokenizer, {1, 262, 259, 264}), "a  ab");
  EXPECT_EQ(decode(*tokenizer, {1, 259, 262, 2}), " a");
}

TEST(SentencePiece, BosAndEos) {
  struct Case {
    std::optional<bool> add_bos;
    std::optional<bool> add_eos;
    Ids ids;
  };
  const Case cases[] = {
      {{}, {}, {1, 262}},      {true, {}, {1, 262}},    {false, {}, {262}},
      {{}, true, {1, 262, 2}}, {false, true, {262, 2}}, {{}, false, {1, 262}},
  };
  for (const Case& c : cases) {
    TokenizerConfig config;
    config.add_bos_token = c.add_bos;
    config.add_eos_token = c.add_eos;
    EXPECT_EQ(load(tiny_model(), config)->encode("a", {}), c.ids);
  }
  TokenizerConfig swapped;
  swapped.bos_token = "</s>";
  swapped.eos_token = "<s>";
  swapped.named_tokens = {{.content = "</s>", .special = true},
                          {.content = "<s>", .special = true}};
  const auto tokenizer = load(tiny_model(), swapped);
  EXPECT_EQ(tokenizer->encode("a", {}), (Ids{2, 262}));
  EXPECT_EQ(tokenizer->eos_id(), 1);

  // Either may be number 0.
  const std::string unknown = piece("<unk>", 0, PieceType::unknown);
  const std::string bos = piece("<s>", 0, PieceType::control);
  const std::string eos = piece("</s>", 0, PieceType::control);
  const std::string rest =
      piece("\u2581a", -1) + bytes_field(2, number_field(3, 2)) + kLlamaNormalizer;
  EXPECT_EQ(load(bos + eos + unknown + rest)->bos_id(), 0);
  EXPECT_EQ(load(bos + eos + unknown + rest)->encode("a", {}), (Ids{0, 3}));
  EXPECT_EQ(load(eos + bos + unknown + rest)->eos_id(), 0);

  const std::string no_control = piece("<unk>", 0, PieceType::unknown) + piece("\u2581a", -1) +
                                 bytes_field(2, number_field(3, 2)) + kLlamaNormalizer;
  EXPECT_EQ(load(no_control)->bos_id(), std::nullopt);
  EXPECT_EQ(load(no_control)->encode("az", {}), (Ids{1, 0}));  // no BOS
  TokenizerConfig wants_bos;
  wants_bos.add_bos_token = true;
  EXPECT_TRUE(throws_error([&] { load(no_control, wants_bos); },
                           "add_bos_token is true, but there is no bos_token"));
}

TEST(SentencePiece, ControlTokensInTheText) {
  TokenizerConfig legacy;
  legacy.legacy = true;
  const auto modern = load(tiny_model());
  const auto old = load(tiny_model(), legacy);
  struct Case {
    std::string_view text;
    Ids modern;
    Ids legacy;
  };
  const Case cases[] = {
      {"<s>", {1}, {1}},
      {"<s>a", {1, 260}, {1, 262}},
      {"a</s>a", {262, 2, 260}, {262, 2, 262}},
      {"a</s> a<unk>", {262, 2, 262, 0}, {262, 2, 259, 262, 0}},
      {"a</s", {262, 3 + '<', 3 + '/', 3 + 's'}, {262, 3 + '<', 3 + '/', 3 + 's'}},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(encode(*modern, c.text, true), c.modern) << c.text;
    EXPECT_EQ(encode(*old, c.text, true), c.legacy) << c.text;
  }
  EXPECT_EQ(modern->encode("a</s>", {.add_special_tokens = true, .parse_special = true}),
            (Ids{1, 262, 2}));
}

TEST(SentencePiece, AddedTokens) {
  TokenizerConfig config;
  config.added_tokens = {{.content = "<s>", .id = 1, .special = true},
                         {.content = "<|im|>", .id = 265, .special = true},
                         {.content = "dragon", .id = 300, .normalized = true}};
  const auto tokenizer = load(tiny_model(), config);
  EXPECT_EQ(tokenizer->vocab_size(), 301);
  EXPECT_EQ(encode(*tokenizer, "a<|im|>b dragon", true), (Ids{262, 265, 261, 259, 300}));
  EXPECT_EQ(encode(*tokenizer, "dragona"), (Ids{300, 260}));
  EXPECT_EQ(decode(*tokenizer, {1, 262, 265, 300, 262}), "adragon a");
  EXPECT_EQ(tokenizer->token_bytes(265, true), "<|im|>");
  EXPECT_EQ(tokenizer->token_bytes(299, true), "");  // a hole

  for (const AddedToken& token :
       {AddedToken{.content = "x", .id = 1}, AddedToken{.content = "x", .id = 262}}) {
    config.added_tokens = {token};
    EXPECT_TRUE(
        throws_error([&] { load(tiny_model(), config); }, "which does not fit the vocabulary"));
  }
}

TEST(SentencePiece, WithoutADummyPrefix) {
  TokenizerConfig no_prefix_space;
  no_prefix_space.add_prefix_space = false;
  const std::string no_prefix =
      pieces() + trainer_spec() + normalizer_spec(number_field(3, 0) + number_field(4, 0));
  for (const auto& tokenizer : {load(no_prefix), load(tiny_model(), no_prefix_space)}) {
    EXPECT_FALSE(tokenizer->strips_leading_space());
    EXPECT_EQ(encode(*tokenizer, "ab"), (Ids{263}));
    EXPECT_EQ(encode(*tokenizer, " a"), (Ids{262}));
    EXPECT_EQ(decode(*tokenizer, {1, 262}), " a");
  }
}

TEST(SentencePiece, UserDefinedSymbolsAreAlwaysFound) {
  const auto tokenizer =
      load(pieces() + piece("<x>", 0, PieceType::user_defined) + trainer_spec() + kLlamaNormalizer);
  EXPECT_EQ(encode(*tokenizer, "a<x>b"), (Ids{262, 265, 261}));
  EXPECT_EQ(decode(*tokenizer, {262, 265, 261}), "a<x>b");
}

TEST(SentencePiece, RefusedModels) {
  struct Case {
    std::string model;
    std::string_view message;
  };
  const std::string good = tiny_model();
  const auto specs = [](const std::string& list) {
    return list + trainer_spec() + kLlamaNormalizer;
  };
  std::string nested;
  for (int i = 1; i <= 33; ++i) {
    nested += piece(std::string(i, 'x'), 0, PieceType::user_defined);
  }
  const Case cases[] = {
      {"", "not a SentencePiece model: it has no pieces"},
      {"hello world, this is no model", "not a SentencePiece model"},
      {std::string(100, '\xff'), "not a SentencePiece model"},
      {"{\"version\": \"1.0\"}", "not a SentencePiece model"},
      {good.substr(0, good.size() / 2), "not a SentencePiece model"},
      {pieces(), "model_type is 1; only 2 (BPE) is supported"},
      {trainer_spec() + kLlamaNormalizer, "it has no pieces"},
      {pieces() + trainer_spec(1), "model_type is 1"},
      {pieces() + trainer_spec(4), "model_type is 4"},
      {pieces() + trainer_spec(99), "model_type is 99"},
      {pieces() + trainer_spec(2, number_field(24, 1)), "treat_whitespace_as_suffix is true"},
      {pieces() + trainer_spec() + normalizer_spec(bytes_field(2, "\x10\0\0\0 0123456789abcdef")),
       "the normalizer has a table of"},
      {pieces() + trainer_spec() + normalizer_spec(number_field(5, 0)),
       "escape_whitespaces is false"},
      {specs(bytes_field(1, "")), "piece 0 is \"\"; expected a text without NUL bytes"},
      {specs(piece(std::string_view("a\0b", 3), 0)), "expected a text without NUL bytes"},
      {specs(piece("a", std::numeric_limits<float>::quiet_NaN())), "piece 0 has the score nan"},
      {specs(piece("a", std::numeric_limits<float>::infinity())), "piece 0 has the score inf"},
      {specs(piece("a", 0, static_cast<PieceType>(7))), "piece 0 has the unknown type 7"},
      {specs(piece("a", 0)), "not a usable SentencePiece model: "},  // no unknown piece
      {specs(pieces() + piece("a", -7)), "not a usable SentencePiece model: "},
      {specs(pieces() + piece("\n\x1b", 0) + piece("\n\x1b", 0)), "\\n\\u001b"},  // there twice
      {specs(pieces() + piece("<x>", 0, PieceType::byte)), "not a usable SentencePiece model: "},
      {specs(piece("<unk>", 0, PieceType::unknown) + piece("<0x00>", 0, PieceType::byte)),
       "not a usable SentencePiece model: "},
      {specs(pieces() + nested), "more than 32 user-defined symbols begin like \"x\""},
      {good + "\x0b", "not a SentencePiece model"},                      // a group
      {good + "\x0a\xff\xff\xff\xff\x0f", "not a SentencePiece model"},  // 4 GB of bytes
      {good + std::string(12, '\x80'), "not a SentencePiece model"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(&c - cases);
    EXPECT_TRUE(throws_error([&] { load(c.model); }, c.message));
  }
  TokenizerConfig config;
  config.tokenizer_class = "T5Tokenizer";
  EXPECT_TRUE(throws_error([&] { load(good, config); },
                           R"(tokenizer_class is "T5Tokenizer"; with a tokenizer.model only)"));
  config.tokenizer_class = "LlamaTokenizerFast";
  EXPECT_NO_THROW(load(good, config));
  // NOLINTNEXTLINE(bugprone-string-constructor)
  EXPECT_TRUE(throws_error([] { load(std::string(16'000'001, 'a')); }, "16000001 bytes"));
}

// Whatever the bytes are, loading throws an Error or gives a tokenizer that works.
void try_model(const std::string& model) {
  try {
    const auto tokenizer = load(model);
    const Ids ids = tokenizer->encode("The old woman said: caf\u00e9 1234 ", {});
    for (int32_t id : ids) {
      tokenizer->token_bytes(id, true);
    }
    decode(*tokenizer, ids);
  } catch (const Error&) {
  }
}

TEST(SentencePiece, DamagedModels) {
  const std::string models[] = {
      tiny_model(),
      read_text_file(testing::data("models/fable-llama-relu-8m/tokenizer.model"), 1'000'000)};
  std::mt19937_64 random(3);
  for (const std::string& model : models) {
    for (int repeat = 0; repeat < 300; ++repeat) {
      std::string damaged = model;
      for (auto count = 1 + random() % 4; count > 0; --count) {
        damaged[random() % damaged.size()] = static_cast<char>(random());
      }
      try_model(damaged);
      try_model(model.substr(0, random() % model.size()));
    }
    // The ends, where the specifications are.
    for (size_t back = 1; back <= 200; ++back) {
      std::string damaged = model;
      char& byte = damaged[damaged.size() - back];
      byte = static_cast<char>(byte ^ static_cast<char>(1 + random() % 255));
      try_model(damaged);
      try_model(model.substr(0, model.size() - back));
    }
  }
}

}  // namespace
}  // namespace sparsellm
