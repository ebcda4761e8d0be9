// The tokenizers of all test checkpoints against what Hugging Face makes of the same files.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/reference.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::Reference;

bool has_tokenizer(const fs::path& folder) {
  return fs::exists(folder / "tokenizer.model") || fs::exists(folder / "tokenizer.json") ||
         fs::exists(folder / "vocab.json");
}

std::vector<Reference> references() {
  std::vector<Reference> found;
  for (const fs::path& checkpoint : testing::all_checkpoints()) {
    if (has_tokenizer(checkpoint)) {
      found.push_back(testing::read_reference(checkpoint));
    }
  }
  return found;
}

using Ids = std::vector<int32_t>;

TEST(TokenizerGolden, ThereAreCheckpoints) { EXPECT_GE(references().size(), 2u); }

TEST(TokenizerGolden, Samples) {
  for (const Reference& reference : references()) {
    SCOPED_TRACE(reference.directory.filename());
    const auto tokenizer = load_tokenizer(reference.directory);
    EXPECT_FALSE(reference.tokenizer_samples.empty());
    for (const Reference::TokenizerSample& sample : reference.tokenizer_samples) {
      const EncodeOptions options{.add_special_tokens = false,
                                  .parse_special = sample.parse_special};
      EXPECT_EQ(tokenizer->encode(sample.text, options), sample.ids) << sample.text;
    }
  }
}

TEST(TokenizerGolden, TextSurvives) {
  for (const Reference& reference : references()) {
    SCOPED_TRACE(reference.directory.filename());
    const auto tokenizer = load_tokenizer(reference.directory);
    for (const Reference::TokenizerSample& sample : reference.tokenizer_samples) {
      EXPECT_EQ(decode(*tokenizer, tokenizer->encode(sample.text, {})), sample.text);
    }
  }
}

TEST(TokenizerGolden, Continuations) {
  for (const Reference& reference : references()) {
    SCOPED_TRACE(reference.directory.filename());
    const auto tokenizer = load_tokenizer(reference.directory);
    EXPECT_FALSE(reference.greedy.empty());
    for (const Reference::Greedy& greedy : reference.greedy) {
      const std::string& prompt = greedy.prompt.value();
      const std::string& text = greedy.text.value();
      Ids ids = tokenizer->encode(prompt, {});
      EXPECT_EQ(ids, greedy.ids) << prompt;

      IncrementalDecoder decoder(*tokenizer, true);
      std::string streamed;
      for (int32_t id : greedy.output_ids) {
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
  for (const Reference& reference : references()) {
    SCOPED_TRACE(reference.directory.filename());
    const auto tokenizer = load_tokenizer(reference.directory);
    std::vector<Ids> expected;
    for (const Reference::TokenizerSample& sample : reference.tokenizer_samples) {
      expected.push_back(tokenizer->encode(sample.text, {}));
    }
    std::vector<std::vector<Ids>> results(4);
    std::vector<std::thread> threads;
    threads.reserve(results.size());
    for (std::vector<Ids>& result : results) {
      threads.emplace_back([&] {
        for (const Reference::TokenizerSample& sample : reference.tokenizer_samples) {
          result.push_back(tokenizer->encode(sample.text, {}));
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
  for (const Reference& reference : references()) {
    SCOPED_TRACE(reference.directory.filename());
    const auto tokenizer = load_tokenizer(reference.directory);
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
