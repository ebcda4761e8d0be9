#include "sparse/choice/format_rules.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/dense/dense.h"
#include "sparse/tca_bme/tca_bme.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::TempDir;

FormatRules read(std::string_view json) {
  const TempDir folder;
  return FormatRules::read(folder.write("rules.json", json));
}

// The members of the only rule.
FormatRules with_rule(std::string_view members) {
  return read(fmt::format(R"({{"gpu": "G", "rules": [{{{}}}]}})", members));
}

std::string_view name_of_choice(const FormatRules& rules, const WeightSize& weight,
                                int64_t tokens) {
  return rules.choose(weight, tokens).name();
}

TEST(FormatRules, TheFirstThatMatchesHolds) {
  const FormatRules rules = read(R"({"description": "text", "gpu": "Some GPU 1", "rules": [
    {"density": [0.1, 0.2], "elements": [100, 400], "tokens": [2, 4], "format": "tiled_csl"},
    {"density": [0, 0.2], "format": "tca_bme"},
    {"density": [0.9, 1], "tokens": [7, 7], "format": "tca_bme"}]})");
  EXPECT_EQ(rules.gpu(), "Some GPU 1");
  const WeightSize inside{.rows = 10, .columns = 40, .density = 0.2};
  EXPECT_EQ(name_of_choice(rules, inside, 2), "tiled_csl");
  EXPECT_EQ(name_of_choice(rules, inside, 4), "tiled_csl");
  EXPECT_EQ(name_of_choice(rules, inside, 1), "tca_bme");
  EXPECT_EQ(name_of_choice(rules, inside, 5), "tca_bme");
  EXPECT_EQ(name_of_choice(rules, {.rows = 1, .columns = 100, .density = 0.1}, 3), "tiled_csl");
  EXPECT_EQ(name_of_choice(rules, {.rows = 1, .columns = 99, .density = 0.1}, 3), "tca_bme");
  EXPECT_EQ(name_of_choice(rules, {.rows = 1, .columns = 401, .density = 0.1}, 3), "tca_bme");
  EXPECT_EQ(name_of_choice(rules, {.rows = 10, .columns = 40, .density = 0.09999}, 3), "tca_bme");
  EXPECT_EQ(name_of_choice(rules, {.rows = 10, .columns = 40, .density = 0.20001}, 3), "dense");
  EXPECT_EQ(name_of_choice(rules, {.rows = 10, .columns = 40, .density = 1.0}, 7), "tca_bme");
  EXPECT_EQ(name_of_choice(rules, {.rows = 0, .columns = 40, .density = 1.0}, 8), "dense");
}

TEST(FormatRules, TheEndOfARangeIsThatOfASparsityToo) {
  const FormatRules rules = with_rule(R"("density": [0.3, 0.42], "format": "tca_bme")");
  for (const double sparsity : {0.7, 0.58}) {
    const WeightSize weight{.rows = 10, .columns = 10, .density = 1.0 - sparsity};
    EXPECT_EQ(name_of_choice(rules, weight, 8), "tca_bme") << sparsity;
  }
  EXPECT_EQ(name_of_choice(rules, {.rows = 1, .columns = 1, .density = 0.4201}, 8), "dense");
  EXPECT_EQ(name_of_choice(rules, {.rows = 1, .columns = 1, .density = 0.2999}, 8), "dense");
}

TEST(FormatRules, OfSeveralNumbersOfTokensMostDecide) {
  const FormatRules rules = with_rule(R"("tokens": [1, 4], "format": "tca_bme")");
  const WeightSize weight{.rows = 10, .columns = 10, .density = 0.5};
  const auto choice = [&](const std::vector<int64_t>& tokens) {
    return rules.choose(weight, tokens).name();
  };
  EXPECT_EQ(choice({1, 2, 4, 8, 16}), "tca_bme");
  EXPECT_EQ(choice({1, 2, 4, 8, 16, 32, 64}), "dense");
  EXPECT_EQ(choice({1, 2, 8, 16}), "tca_bme");  // the first of equally many
  EXPECT_EQ(choice({8, 1}), "dense");
  EXPECT_EQ(choice({}), "dense");
}

TEST(FormatRules, ThoseOfTheBuildAreThoseOfTheFile) {
  const FormatRules& built_in = FormatRules::built_in();
  const FormatRules file =
      FormatRules::read(testing::source_dir() / "configs" / "format-rules" / "h200.json");
  EXPECT_EQ(built_in.gpu(), file.gpu());
  EXPECT_EQ(built_in.gpu(), "NVIDIA H200");
  for (const int64_t columns : {16, 4096, 28672}) {
    for (const double density : {0.0, 0.05, 0.3, 0.4, 0.5, 0.6, 1.0}) {
      for (const int64_t tokens : {1, 8, 32, 33, 64, 65, 128, 4096}) {
        const WeightSize weight{.rows = 7168, .columns = columns, .density = density};
        EXPECT_EQ(&built_in.choose(weight, tokens), &file.choose(weight, tokens));
      }
    }
  }
}

TEST(FormatRules, OfTheBuildSayWhatWasMeasured) {
  const FormatRules& rules = FormatRules::built_in();
  struct Case {
    int64_t rows, columns;
    double density;
    std::vector<std::string_view> formats;  // for 1, 16, 32, 64, 128 and 256 tokens
  };
  constexpr int64_t kTokens[] = {1, 16, 32, 64, 128, 256};
  constexpr std::string_view kBitmaps = "tca_bme", kTiles = "tiled_csl", kDense = "dense";
  const std::vector<Case> cases{
      {28672, 7168, 0.05, {kBitmaps, kBitmaps, kTiles, kTiles, kTiles, kDense}},
      {28672, 7168, 0.1, {kBitmaps, kBitmaps, kTiles, kTiles, kTiles, kDense}},
      {28672, 7168, 0.2, {kTiles, kTiles, kBitmaps, kTiles, kTiles, kDense}},
      {28672, 7168, 0.3, {kBitmaps, kBitmaps, kBitmaps, kTiles, kDense, kDense}},
      {28672, 7168, 0.4, {kBitmaps, kBitmaps, kBitmaps, kTiles, kDense, kDense}},
      {28672, 7168, 0.5, {kBitmaps, kBitmaps, kBitmaps, kBitmaps, kDense, kDense}},
      {14336, 4096, 0.2, {kBitmaps, kBitmaps, kBitmaps, kBitmaps, kDense, kDense}},
      {14336, 4096, 0.4, {kBitmaps, kBitmaps, kBitmaps, kDense, kDense, kDense}},
      {4096, 4096, 0.05, {kBitmaps, kBitmaps, kBitmaps, kDense, kDense, kDense}},
      {28672, 7168, 0.6, {kDense, kDense, kDense, kDense, kDense, kDense}}};
  for (const Case& of : cases) {
    for (size_t i = 0; i < of.formats.size(); ++i) {
      EXPECT_EQ(name_of_choice(rules, {of.rows, of.columns, of.density}, kTokens[i]), of.formats[i])
          << of.rows << " x " << of.columns << ", density " << of.density << ", " << kTokens[i]
          << " tokens";
    }
  }
}

// Every message begins with the file's name, and is one line.
TEST(FormatRules, WrongFilesAreRefused) {
  const std::vector<std::pair<std::string, std::string>> wrong{
      {"", ""},
      {"[]", "expected an object"},
      {"{}", "gpu"},
      {R"({"gpu": 7, "rules": []})", "gpu is 7"},
      {R"({"gpu": "", "rules": []})", "expected 1 to 100 printable characters"},
      {R"({"gpu": "a\nb", "rules": []})", "expected 1 to 100 printable characters"},
      {R"({"gpu": "G"})", "rules"},
      {R"({"gpu": "G", "rules": {}})", "rules"},
      {R"({"gpu": "G", "rules": [], "rule": 1})", "rule"},
      {R"({"gpu": "G", "rules": [7]})", "rule 1 is 7"},
      {R"({"gpu": "G", "rules": [{"format": "dense"}, {}]})", "rule 2"},
      {R"({"gpu": "G", "rules": [{"format": "dense", "zeros": 1}]})", "zeros"},
      {R"({"gpu": "G", "rules": [{"format": "csr"}]})", R"("csr"; expected one of dense, )"},
      {R"({"gpu": "G", "rules": [{"format": "auto"}]})", R"("auto"; expected one of dense, )"},
      {R"({"gpu": "G", "rules": [{"format": "dense_i8"}]})",
       R"("dense_i8"; expected one of dense, )"},
      {R"({"gpu": "G", "rules": [{"format": "dense", "density": 0.5}]})", "density"},
      {R"({"gpu": "G", "rules": [{"format": "dense", "density": [0.5]}]})", "has 1 numbers"},
      {R"({"gpu": "G", "rules": [{"format": "dense", "density": [0, 1.5]}]})", "1.5"},
      {R"({"gpu": "G", "rules": [{"format": "dense", "density": [0.5, 0.4]}]})", "after its end"},
      {R"({"gpu": "G", "rules": [{"format": "dense", "density": [0, 1e999]}]})", ""},
      {R"({"gpu": "G", "rules": [{"format": "dense", "tokens": [1, 2, 3]}]})", "has 3 numbers"},
      {R"({"gpu": "G", "rules": [{"format": "dense", "tokens": [4, 1]}]})", "after its end"},
      {R"({"gpu": "G", "rules": [{"format": "dense", "tokens": [-1, 1]}]})", "-1"},
      {R"({"gpu": "G", "rules": [{"format": "dense", "elements": ["a", 1]}]})", "\"a\""},
      {R"({"gpu": "G", "rules": [{"format": "dense", "elements": [0, 1e30]}]})", "elements"},
      {R"({"gpu": "G", "rules": [[[[[1]]]]]})", ""},
  };
  const TempDir folder;
  for (const auto& [text, what] : wrong) {
    const fs::path path = folder.write("rules.json", text);
    try {
      FormatRules::read(path);
      ADD_FAILURE() << "no Error was thrown for " << text;
    } catch (const Error& error) {
      const std::string_view message = error.what();
      EXPECT_TRUE(message.starts_with(path.string())) << message;
      EXPECT_NE(message.find(what), std::string_view::npos) << message << "\nexpected " << what;
      EXPECT_EQ(message.find('\n'), std::string_view::npos) << message;
    }
  }
  EXPECT_THROW(FormatRules::read(folder.path() / "none.json"), Error);
  std::string many = R"({"gpu": "G", "rules": [{"format": "dense"})";
  for (int i = 0; i < 1000; ++i) {
    many += R"(,{"format": "dense"})";
  }
  EXPECT_THROW(read(many + "]}"), Error);
}

TEST(SavesBytes, IfTheEncodingCanBeExpectedToBeSmaller) {
  const auto saves = [](const WeightFormat& format, double density, DType dtype) {
    return saves_bytes(format, {.rows = 4096, .columns = 4096, .density = density}, dtype);
  };
  EXPECT_TRUE(saves(tca_bme_format(), 0.5, DType::f16));
  EXPECT_FALSE(saves(tca_bme_format(), 0.97, DType::bf16));
  EXPECT_FALSE(saves(tca_bme_format(), 0.5, DType::f32));  // which it does not hold
  EXPECT_FALSE(saves(dense_format(), 0.0, DType::f16));
  EXPECT_FALSE(
      saves_bytes(tca_bme_format(), {.rows = 0, .columns = 5, .density = 0.5}, DType::f16));
}

}  // namespace
}  // namespace sparsellm
