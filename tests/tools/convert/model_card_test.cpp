// What a converted directory says of itself.

#include "tools/convert/model_card.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "engine/conversion/convert.h"
#include "tests/engine/conversion/converted_model.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::contents;
using testing::convert;
using testing::plan;
using testing::TempDir;
using testing::throws_error;

fs::path llama3() { return testing::data("tiny/llama3"); }

// As sparsellm-convert does it.
void convert_with_card(
    const fs::path& input, const fs::path& output, const SparsityPlan& how,
    const std::function<void(ConvertOptions&)>& change = [](ConvertOptions&) {}) {
  convert(input, output, how, [&](ConvertOptions& options) {
    options.model_card = [&](const Conversion& conversion) {
      return model_card(input, output, conversion);
    };
    change(options);
  });
}

std::string card_of(const fs::path& output, const std::string& method, double sparsity,
                    const std::string& format) {
  convert_with_card(llama3(), output, plan(method, sparsity, format));
  return contents(output / "README.md");
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ModelCard, OfASparseModel) {
  const TempDir directory;
  const std::string card = card_of(directory.path() / "tale-70", "magnitude", 0.75, "tca_bme");
  EXPECT_TRUE(
      card.starts_with("---\nlibrary_name: sparsellm\npipeline_tag: text-generation\n"
                       "tags:\n- pruned\n- tca_bme\n---\n\n# tale-70\n\n"))
      << card;
  for (const char* part :
       {"75.00 % of the elements of the linear layers are zero; pruned by magnitude.\n", " MiB",
        "the sparse format tca_bme, which SparseLLM reads, and transformers does not",
        "sparsellm-run -m DIR -p ", "| mlp.down_proj | ", "| linear layers | ", "| stored | ",
        "| tca_bme | "}) {
    EXPECT_TRUE(has(card, part)) << part << "\n" << card;
  }
  EXPECT_FALSE(has(card, "base_model"));
}

TEST(ModelCard, OfNarrowValues) {
  const TempDir directory;
  const fs::path output = directory.path() / "narrow";
  convert_with_card(llama3(), output, SparsityPlan::uniform({}, "tca_bme", "i4"));
  const std::string card = contents(output / "README.md");
  EXPECT_TRUE(has(card, "Some have values of fewer bits: i4:128.\n")) << card;
  EXPECT_TRUE(has(card, "| rounded layers | ")) << card;
}

TEST(ModelCard, OfADenseModel) {
  const TempDir directory;
  const std::string card = card_of(directory.path() / "dense", "none", 0, "dense");
  EXPECT_TRUE(
      card.starts_with("---\nlibrary_name: transformers\npipeline_tag: text-generation\n"
                       "---\n\n# dense\n"))
      << card;
  EXPECT_TRUE(has(card, "sparsellm-convert has pruned nothing")) << card;
  EXPECT_FALSE(has(card, "sparse format")) << card;
}

TEST(ModelCard, TheInputsIsNotCopiedAndAnOutputsIsReplacedByForceAlone) {
  const TempDir directory;
  const fs::path input = directory.path() / "input";
  const fs::path output = directory.path() / "output";
  fs::copy(llama3(), input);
  std::ofstream(input / "README.md") << "of the input";
  convert_with_card(input, output, plan("none", 0, "tca_bme"));
  EXPECT_FALSE(has(contents(output / "README.md"), "of the input"));
  std::ofstream(output / "README.md") << "of the user";
  EXPECT_TRUE(
      throws_error([&] { convert_with_card(input, output, plan("none", 0, "dense")); }, "exists"));
  EXPECT_EQ(contents(output / "README.md"), "of the user");
  convert_with_card(input, output, plan("none", 0, "dense"),
                    [](ConvertOptions& options) { options.replace = true; });
  EXPECT_TRUE(has(contents(output / "README.md"), "# output\n"));
}

TEST(ModelCard, NamesAreTextAndNothingElse) {
  const TempDir directory;
  const std::string card =
      card_of(directory.path() / "---\n# <b>[x](y)`|*\\ &lt; \xff\u202e_", "none", 0, "tiled_csl");
  EXPECT_TRUE(has(card,
                  "---\n\n# ---\\\\n\\# \\<b\\>\\[x\\](y)\\`\\|\\*\\\\\\\\ \\&lt; \\\\xff"
                  "\\\\xe2\\\\x80\\\\xae\\_\n\n"))
      << card;
  const std::string trailing = card_of(directory.path() / "model/", "none", 0, "tiled_csl");
  EXPECT_TRUE(has(trailing, "\n# model\n")) << trailing;
}

TEST(ModelCard, TheBaseIsKnownWhereAHubsFilesLie) {
  const TempDir directory;
  const fs::path hub = directory.path() / "hub";
  const auto id = [&](const std::string& path) { return hub_id(hub / path); };
  EXPECT_EQ(id("models--owner--A_name-1.5/snapshots/0123abcd"), "owner/A_name-1.5");
  EXPECT_EQ(id("models--owner--name/snapshots/0123abcd/"), "owner/name");
  for (const char* other :
       {"models--owner--name", "models--owner--name/other/0123", "models--name/snapshots/0123",
        "models----name/snapshots/0123", "models--owner--/snapshots/0123",
        "models--a\nb--name/snapshots/0123", "models--owner--a: b/snapshots/0123",
        "models--owner--na\"me/snapshots/0123", "datasets--owner--name/snapshots/0123", "",
        "snapshots/0123"}) {
    EXPECT_EQ(id(other), "") << other;
  }
  const fs::path snapshot = hub / "models--owner--name/snapshots/0123";
  fs::create_directories(snapshot);
  fs::copy(llama3(), snapshot);
  EXPECT_EQ(hub_id(snapshot.string() + "/"), "owner/name");
  convert_with_card(snapshot, directory.path() / "out", plan("none", 0, "tca_bme"));
  EXPECT_TRUE(has(contents(directory.path() / "out" / "README.md"),
                  "- tca_bme\nbase_model: owner/name\n---\n"));
}

}  // namespace
}  // namespace sparsellm
