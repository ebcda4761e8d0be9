// Prompts become token ids, unless they cannot fit the context: then soon, and in little memory.

#include "tools/run/prompt.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/testing/memory_limit.h"
#include "tests/testing/paths.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"
#include "tests/tokenizer/sentencepiece_writer.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/sentencepiece.h"

namespace sparsellm {
namespace {

using testing::throws_error;
using Ids = std::vector<int32_t>;
using PieceType = SentencePieceModel::PieceType;

constexpr const char* kTokenizers[] = {"models/fable-llama-relu-8m", "models/fable-opt-8m",
                                       "tiny/llama3", "tiny/llama_gelu_tanh", "tiny/opt_gelu"};

Prompt prompt_of(std::string_view part, size_t bytes) {
  Prompt prompt;
  std::string& text = prompt.text.emplace();
  text.reserve(bytes + part.size());
  while (text.size() < bytes) {
    text += part;
  }
  return prompt;
}

// Bytes are their own tokens; <x> takes the white space in front of it along.
std::unique_ptr<Tokenizer> unbounded_byte_level() {
  ByteLevelParts parts;
  parts.source = "test";
  for (int byte = 0; byte < 256; ++byte) {
    parts.model.vocabulary.emplace(byte_symbol(static_cast<uint8_t>(byte)), byte);
  }
  parts.special_tokens.added_tokens = {{.content = "<x>", .id = 300, .lstrip = true}};
  return make_byte_level_tokenizer(parts);
}

// Knows "a" (3) and the space (4) only; all else is one token for a run.
std::unique_ptr<Tokenizer> unbounded_sentencepiece() {
  using testing::bytes_field;
  using testing::number_field;
  using testing::piece;
  const testing::TempDir folder;
  return load_sentencepiece(
      folder.write("tokenizer.model", piece("<unk>", 0, PieceType::unknown) +
                                          piece("<s>", 0, PieceType::control) +
                                          piece("</s>", 0, PieceType::control) + piece("a", -1) +
                                          piece("\u2581", -2) + bytes_field(2, number_field(3, 2)) +
                                          bytes_field(3, number_field(3, 0) + number_field(4, 0))),
      {});
}

TEST(Prompt, ThatCannotFitIsNotTokenized) {
  // Not even UTF-8.
  const Prompt prompt = prompt_of("\xff", kMaxPromptBytes);
  for (const char* name : kTokenizers) {
    SCOPED_TRACE(name);
    const auto tokenizer = load_tokenizer(testing::data(name));
    const int64_t longest = tokenizer->max_token_bytes().value();
    const auto refuse = [&] {
      EXPECT_TRUE(throws_error(
          [&] { make_request(*tokenizer, prompt, false, 256); },
          fmt::format("the prompt has 67108864 bytes, which are at least {} tokens, but the "
                      "context holds 256",
                      (kMaxPromptBytes + longest - 1) / longest)));
      if (::testing::Test::HasFailure()) {
        std::_Exit(1);
      }
    };
    if (testing::kSanitized) {
      refuse();
    } else {
      EXPECT_EXIT(testing::exit_with_memory(1, refuse), ::testing::ExitedWithCode(0), "");
    }
  }
}

TEST(Prompt, TheBoundIsExact) {
  const auto tokenizer = load_tokenizer(testing::data(kTokenizers[0]));
  const int64_t longest = tokenizer->max_token_bytes().value();
  const Prompt fits = prompt_of("a", static_cast<size_t>(10 * longest));
  // The engine counts what may fit.
  EXPECT_GT(std::ssize(make_request(*tokenizer, fits, false, 10).prompt), 10);
  const Prompt does_not = prompt_of("a", static_cast<size_t>(10 * longest + 1));
  EXPECT_TRUE(throws_error([&] { make_request(*tokenizer, does_not, false, 10); },
                           "which are at least 11 tokens, but the context holds 10"));
}

TEST(Prompt, CountingStops) {
  struct Case {
    std::unique_ptr<Tokenizer> tokenizer;
    std::string_view part;
  };
  Case cases[] = {{unbounded_byte_level(), "a b "}, {unbounded_sentencepiece(), "a b "}};
  for (const Case& c : cases) {
    ASSERT_EQ(c.tokenizer->max_token_bytes(), std::nullopt);
    const Prompt prompt = prompt_of(c.part, kMaxPromptBytes);
    const auto refuse = [&] {
      EXPECT_TRUE(throws_error([&] { make_request(*c.tokenizer, prompt, false, 256); },
                               "which are more than 65536 tokens, but the context holds 256"));
      EXPECT_TRUE(throws_error([&] { make_request(*c.tokenizer, prompt, false, 100'000); },
                               "which are more than 100000 tokens, but the context holds 100000"));
      if (::testing::Test::HasFailure()) {
        std::_Exit(1);
      }
    };
    if (testing::kSanitized) {
      refuse();
    } else {
      EXPECT_EXIT(testing::exit_with_memory(24, refuse), ::testing::ExitedWithCode(0), "");
    }
  }
}

TEST(Prompt, OfFewTokensFitsHoweverLong) {
  constexpr size_t kBytes = 16 << 20;
  Prompt prompt = prompt_of(" ", kBytes);
  *prompt.text += "<x>";
  EXPECT_EQ(make_request(*unbounded_byte_level(), prompt, false, 8).prompt, Ids{300});
  // U+65E5, without a piece.
  EXPECT_EQ(make_request(*unbounded_sentencepiece(), prompt_of("\u65e5", kBytes), false, 8).prompt,
            (Ids{1, 0}));
}

}  // namespace
}  // namespace sparsellm
