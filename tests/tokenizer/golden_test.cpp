// The tokenizers of all test checkpoints against what Hugging Face makes of the same files.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/mapped_file.h"
#include "tests/testing/paths.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool has_tokenizer(const fs::path& folder) {
  return fs::exists(folder / "tokenizer.model") || fs::exists(folder / "tokenizer.json") ||
         fs::exists(folder / "vocab.json");
}

std::vector<fs::path> checkpoints() {
  std::vector<fs::path> folders;
  for (const char* parent : {"models", "tiny"}) {
    const fs::path path = testing::data(parent);
    if (!fs::exists(path)) {
      continue;
    }
    for (const auto& entry : fs::directory_iterator(path)) {
      if (has_tokenizer(entry.path()) && fs::exists(entry.path() / "reference.json")) {
        folders.push_back(entry.path());
      }
    }
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

json reference(const fs::path& folder) {
  return json::parse(read_text_file(folder / "reference.json", 100'000'000));
}

using Ids = std::vector<int32_t>;

TEST(TokenizerGolden, ThereAreCheckpoints) { EXPECT_GE(checkpoints().size(), 2u); }

TEST(TokenizerGolden, Samples) {
  for (const fs::path& folder : checkpoints()) {
    SCOPED_TRACE(folder.filename().string());
    const auto tokenizer = load_tokenizer(folder);
    const json samples = reference(folder).at("tokenizer_samples");
    EXPECT_FALSE(samples.empty());
    for (const json& sample : samples) {
      const auto text = sample.at("text").get<std::string>();
      const bool parse_special = sample.value("parse_special", false);
      EXPECT_EQ(
          tokenizer->encode(text, {.add_special_tokens = false, .parse_special = parse_special}),
          sample.at("ids").get<Ids>())
          << text;
    }
  }
}

TEST(TokenizerGolden, TextSurvives) {
  for (const fs::path& folder : checkpoints()) {
    SCOPED_TRACE(folder.filename().string());
    const auto tokenizer = load_tokenizer(folder);
    const json samples = reference(folder).at("tokenizer_samples");
    for (const json& sample : samples) {
      const auto text = sample.at("text").get<std::string>();
      EXPECT_EQ(decode(*tokenizer, tokenizer->encode(text, {})), text);
    }
  }
}

TEST(TokenizerGolden, Continuations) {
  for (const fs::path& folder : checkpoints()) {
    SCOPED_TRACE(folder.filename().string());
    const auto tokenizer = load_tokenizer(folder);
    const json continuations = reference(folder).at("greedy");
    EXPECT_FALSE(continuations.empty());
    for (const json& continuation : continuations) {
      const auto prompt = continuation.at("prompt").get<std::string>();
      const auto text = continuation.at("text").get<std::string>();
      Ids ids = tokenizer->encode(prompt, {});
      EXPECT_EQ(ids, continuation.at("ids").get<Ids>()) << prompt;

      IncrementalDecoder decoder(*tokenizer, true);
      std::string streamed;
      for (int32_t id : continuation.at("output_ids").get<Ids>()) {
        const std::string part = decoder.add(id);
        EXPECT_NO_THROW(check_text(part));
        streamed += part;
        ids.push_back(id);
      }
      streamed += decoder.finish();
      EXPECT_EQ(prompt + streamed, text);
      EXPECT_EQ(decode(*tokenizer, ids), text);
    }
  }
}

TEST(TokenizerGolden, ThreadsShareATokenizer) {
  for (const fs::path& folder : checkpoints()) {
    SCOPED_TRACE(folder.filename().string());
    const auto tokenizer = load_tokenizer(folder);
    const json samples = reference(folder).at("tokenizer_samples");
    std::vector<std::string> texts;
    std::vector<Ids> expected;
    for (const json& sample : samples) {
      texts.push_back(sample.at("text").get<std::string>());
      expected.push_back(tokenizer->encode(texts.back(), {}));
    }
    std::vector<std::vector<Ids>> results(4);
    std::vector<std::thread> threads;
    for (std::vector<Ids>& result : results) {
      threads.emplace_back([&] {
        for (const std::string& text : texts) {
          result.push_back(tokenizer->encode(text, {}));
          decode(*tokenizer, result.back());
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    for (const std::vector<Ids>& result : results) {
      EXPECT_EQ(result, expected);
    }
  }
}

TEST(TokenizerGolden, EveryTokenHasBytes) {
  for (const fs::path& folder : checkpoints()) {
    SCOPED_TRACE(folder.filename().string());
    const auto tokenizer = load_tokenizer(folder);
    ASSERT_GT(tokenizer->vocab_size(), 0);
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      EXPECT_NE(tokenizer->token_bytes(id, true), "") << id;
    }
    ASSERT_TRUE(tokenizer->bos_id() && tokenizer->eos_id());
    for (int32_t id : {*tokenizer->bos_id(), *tokenizer->eos_id()}) {
      EXPECT_EQ(tokenizer->token_bytes(id), "");
    }
  }
}

}  // namespace
}  // namespace sparsellm
