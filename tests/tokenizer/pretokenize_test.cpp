#include "tokenizer/pretokenize.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace sparsellm {
namespace {

using Words = std::vector<std::string>;

constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

// Of GPT-4o and later models; it mixes case, marks and properties in classes.
constexpr std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

Words words(const PretokenizerOptions& options, std::string_view text) {
  Words result;
  Pretokenizer(options).for_each_word(text,
                                      [&](std::string_view word) { result.emplace_back(word); });
  return result;
}

std::vector<PretokenizerStep> splits(const std::vector<std::string>& patterns) {
  std::vector<PretokenizerStep> steps;
  steps.reserve(patterns.size());
  for (const std::string& pattern : patterns) {
    steps.emplace_back(SplitStep{.pattern = pattern});
  }
  return steps;
}

struct Case {
  std::string_view text;
  Words words;
};

TEST(Pretokenizer, Gpt2) {
  const Case cases[] = {
      {"", {}},
      {" ", {" "}},
      {"Hello, world!", {"Hello", ",", " world", "!"}},
      {"  two   spaces ", {" ", " two", "  ", " spaces", " "}},
      {"I'm you'll THEY'LL", {"I", "'m", " you", "'ll", " THEY", "'", "LL"}},
      {"a1b22", {"a", "1", "b", "22"}},
      {"x 12345", {"x", " 12345"}},
      {"a\n\n b\r\n", {"a", "\n\n", " b", "\r\n"}},
      {"a \t b", {"a", " \t", " b"}},
      {"na\u00efve e\u0301", {"na\u00efve", " e", "\u0301"}},
      {"\u65e5\u672c\u8a9e\u3002", {"\u65e5\u672c\u8a9e", "\u3002"}},
      {"\u00bd\u2167 \u0663", {"\u00bd\u2167", " \u0663"}},
      {"a\u00a0b\u3000c", {"a", "\u00a0", "b", "\u3000", "c"}},
      {"!\u180e!\u200b!\ufeff!", {"!\u180e!\u200b!\ufeff!"}},
      {"!\u0085!\u2028!", {"!", "\u0085", "!", "\u2028", "!"}},
      {"!\x1c!", {"!\x1c!"}},
      {std::string_view("a\0b", 3), {"a", std::string(1, '\0'), "b"}},
      {"'\u017f", {"'", "\u017f"}},
      {"\u2019s", {"\u2019", "s"}},
      {"\U0001f600\ufe0f x", {"\U0001f600\ufe0f", " x"}},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(words({}, c.text), c.words) << c.text;
  }
}

TEST(Pretokenizer, Llama3) {
  const Case cases[] = {
      {"", {}},
      {"Hello, world!", {"Hello", ",", " world", "!"}},
      {"I'M THEY'LL it'\u017f", {"I", "'M", " THEY", "'LL", " it", "'\u017f"}},
      {"'STAR 'LLAMA", {"'S", "TAR", " '", "LLAMA"}},
      {"12345678", {"123", "456", "78"}},
      {"x 1234", {"x", " ", "123", "4"}},
      {"(parens) _foo", {"(parens", ")", " _", "foo"}},
      {"!\n\n!\r\nx", {"!\n\n", "!\r\n", "x"}},
      {"a  \n\n  b", {"a", "  \n\n", " ", " b"}},
      {"a\t\tb", {"a", "\t", "\tb"}},
      {"\u00a0x \u00a0y", {"\u00a0x", " ", "\u00a0y"}},
      {"!\u180e!", {"!\u180e!"}},
      {"\u180ex", {"\u180ex"}},
      {"e\u0301t", {"e", "\u0301t"}},
      {"1\ufe0f\u20e3", {"1", "\ufe0f\u20e3"}},
      {"trailing   ", {"trailing", "   "}},
      {"\u0663\u0664\u0665\u0666", {"\u0663\u0664\u0665", "\u0666"}},
  };
  const PretokenizerOptions options{.steps = splits({std::string(kLlama3Pattern)}),
                                    .use_gpt2_pattern = false};
  for (const Case& c : cases) {
    EXPECT_EQ(words(options, c.text), c.words) << c.text;
  }
}

TEST(Pretokenizer, O200k) {
  const Case cases[] = {
      {"CamelCase HTTPServer", {"Camel", "Case", " HTTPServer"}},
      {"I'll YOU'RE", {"I'll", " YOU'RE"}},
      {"e\u0301t a/b//\n", {"e\u0301t", " a", "/b", "//\n"}},
  };
  const PretokenizerOptions options{.steps = splits({std::string(kO200kPattern)}),
                                    .use_gpt2_pattern = false};
  for (const Case& c : cases) {
    EXPECT_EQ(words(options, c.text), c.words) << c.text;
  }
}

TEST(Pretokenizer, StepsFollowEachOther) {
  struct StepCase {
    PretokenizerOptions options;
    std::string_view text;
    Words words;
  };
  const StepCase cases[] = {
      {{.use_gpt2_pattern = false}, "", {}},
      {{.use_gpt2_pattern = false}, "a b", {"a b"}},
      {{.steps = splits({"\\p{N}", "b"}), .use_gpt2_pattern = false},
       "ab12b",
       {"a", "b", "1", "2", "b"}},
      // A later pattern sees one word at a time: here the space is never followed by "1".
      {{.steps = splits({"\\p{N}", "\\s+(?!\\S)|\\s"}), .use_gpt2_pattern = false},
       "a  1",
       {"a", "  ", "1"}},
      {{.steps = splits({"\\p{N}"})}, "a 12 b", {"a", " ", "1", "2", " b"}},
      {{.add_prefix_space = true}, "", {}},
      {{.add_prefix_space = true}, "a b", {" a", " b"}},
      {{.add_prefix_space = true}, " a", {" a"}},
      {{.add_prefix_space = true}, "\na", {" ", "\n", "a"}},
      {{.steps = splits({"\\p{N}"}), .add_prefix_space = true}, "a1", {" a", " 1"}},
      {{.add_prefix_space = true, .use_gpt2_pattern = false}, "a b", {" a b"}},
  };
  for (const StepCase& c : cases) {
    EXPECT_EQ(words(c.options, c.text), c.words) << c.text;
  }
}

}  // namespace
}  // namespace sparsellm
