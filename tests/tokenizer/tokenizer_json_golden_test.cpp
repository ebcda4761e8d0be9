// The tokenizers of tests/data/tokenizers against what the package tokenizers makes of the same
// files (tests/data/make_tiny_tokenizers.py).

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/base/mapped_file.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tokenizer/tokenizer.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Ids = std::vector<int32_t>;

constexpr int64_t kMaxFileBytes = 1'000'000;

json read(const fs::path& path) { return json::parse(read_text_file(path, kMaxFileBytes)); }

std::vector<fs::path> folders() {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(testing::data("tokenizers"))) {
    found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

// The tokenizer of a folder with other values for some of its keys, those of "model" in it.
std::unique_ptr<Tokenizer> load(const fs::path& folder, const json& changes) {
  json document = read(folder / "tokenizer.json");
  for (const auto& [key, value] : changes.items()) {
    if (key == "model") {
      document[key].update(value);
    } else {
      document[key] = value;
    }
  }
  const testing::TempDir directory;
  directory.write("tokenizer.json", document.dump());
  return load_tokenizer(directory.path());
}

TEST(TokenizerJsonGolden, ThereAreTokenizers) { EXPECT_EQ(folders().size(), 6u); }

TEST(TokenizerJsonGolden, TextsAndIds) {
  for (const fs::path& folder : folders()) {
    for (const json& variant : read(folder / "golden.json")) {
      SCOPED_TRACE(folder.filename().string() + " with " + variant["changes"].dump());
      const auto tokenizer = load(folder, variant["changes"]);
      for (const json& sample : variant["samples"]) {
        const auto text = sample[0].get<std::string>();
        const auto ids = sample[2].get<Ids>();
        EXPECT_EQ(tokenizer->encode(text, {.parse_special = sample[1] == 1}), ids) << sample[0];
        EXPECT_EQ(decode(*tokenizer, ids), sample[3]) << sample[0];
      }
      for (const json& sample : variant["decoded"]) {
        EXPECT_EQ(decode(*tokenizer, sample[0].get<Ids>()), sample[1]) << sample[0];
      }
    }
  }
}

TEST(TokenizerJsonGolden, TokensAreNotLongerThanTheBound) {
  int bounded = 0;
  for (const fs::path& folder : folders()) {
    for (const json& variant : read(folder / "golden.json")) {
      SCOPED_TRACE(folder.filename().string() + " with " + variant["changes"].dump());
      json changes = variant["changes"];
      changes["added_tokens"] = json::array();  // some take any amount of white space along
      changes["post_processor"] = nullptr;
      const auto tokenizer = load(folder, changes);
      if (!tokenizer->max_token_bytes()) {
        continue;
      }
      ++bounded;
      for (const json& sample : variant["samples"]) {
        const auto text = sample[0].get<std::string>();
        EXPECT_LE(std::ssize(text),
                  *tokenizer->max_token_bytes() * std::ssize(tokenizer->encode(text, {})));
      }
    }
  }
  EXPECT_GE(bounded, 20);
}

// The decoders of the others leave the tokens of bytes as they are.
TEST(TokenizerJsonGolden, TextSurvives) {
  const std::string text =
      read_text_file(testing::data("text/peter_pan.txt"), kMaxFileBytes).substr(0, 20'000);
  for (const char* name : {"llama2", "mistral", "gemma", "qwen2"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = load_tokenizer(testing::data("tokenizers") / name);
    EXPECT_EQ(decode(*tokenizer, tokenizer->encode(text, {})), text);
  }
}

}  // namespace
}  // namespace sparsellm
