#include "tools/run/run_entries.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <span>
#include <string>

#include "kernels/base/crc32c.h"
#include "models/storage/model_metadata.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

// Two bytes, with a checksum of them if it is not empty.
std::string safetensors_file(const std::string& checksum, const std::string& value) {
  std::string header = R"({"x":{"dtype":"F16","shape":[1],"data_offsets":[0,2]})";
  if (!checksum.empty()) {
    header +=
        ",\"__metadata__\":{\"sparsellm.version\":\"1\",\"sparsellm.header_crc32c\":\"00000000\","
        "\"crc32c:x\":\"" +
        checksum + "\"}";
  }
  header += "}";
  std::string size(8, '\0');
  size[0] = static_cast<char>(header.size());
  return size + header + value;
}

std::set<std::string> names(const RunEntries& entries) {
  std::set<std::string> names;
  for (const auto& [name, value] : entries) {
    names.insert(name);
  }
  return names;
}

TEST(RunEntries, FilesThatAreRead) {
  const Checkpoint llama(testing::data("models/fable-llama-relu-8m"));
  EXPECT_EQ(names(model_entries(llama)),
            (std::set<std::string>{"config.json", "model.safetensors", "tokenizer.model",
                                   "tokenizer_config.json"}));
  const Checkpoint opt(testing::data("models/fable-opt-8m"));
  EXPECT_EQ(names(model_entries(opt)),
            (std::set<std::string>{"config.json", "merges.txt", "model.safetensors",
                                   "tokenizer_config.json", "vocab.json"}));
}

TEST(RunEntries, WhatAFileSays) {
  const testing::TempDir directory;
  const auto entries = [&] { return model_entries(Checkpoint(directory.path())); };
  directory.write("config.json", "123456789");
  directory.write("tokenizer.json", "");
  directory.write("model.safetensors", safetensors_file("", "ab"));
  directory.write("unknown.json", "x");
  RunEntries found = entries();
  EXPECT_EQ(names(found),
            (std::set<std::string>{"config.json", "model.safetensors", "tokenizer.json"}));
  EXPECT_EQ(found["config.json"], "9 bytes, crc32c e3069283");  // RFC 3720's
  EXPECT_EQ(found["tokenizer.json"], "0 bytes, crc32c 00000000");
  EXPECT_EQ(found["model.safetensors"],
            std::to_string(safetensors_file("", "ab").size()) + " bytes");

  // With checksums only these count: the sum of the header may be damaged, too.
  directory.write("model.safetensors", safetensors_file("12345678", "ab"));
  const std::string first = entries()["model.safetensors"];
  EXPECT_NE(first.find("crc32c "), std::string::npos) << first;
  directory.write("model.safetensors", safetensors_file("12345679", "ab"));
  EXPECT_NE(entries()["model.safetensors"], first);
  directory.write("model.safetensors", safetensors_file("12345678", "ac"));
  EXPECT_EQ(entries()["model.safetensors"], first);

  directory.write("generation_config.json", "{}");
  directory.write("added_tokens.json", "{}");
  EXPECT_EQ(entries().size(), 5u);
  directory.write("tokenizer.model", "x");  // is read instead of tokenizer.json
  EXPECT_FALSE(entries().contains("tokenizer.json"));
  fs::remove(directory.path() / "config.json");
  EXPECT_TRUE(testing::throws_error(entries, "config.json"));
}

// Files are read in blocks.
TEST(RunEntries, AFileOfSeveralBlocks) {
  const testing::TempDir directory;
  directory.write("config.json", "{}");
  directory.write("model.safetensors", safetensors_file("", "ab"));
  std::string vocabulary((2 << 20) + 3, ' ');
  for (size_t i = 0; i < vocabulary.size(); ++i) {
    vocabulary[i] = static_cast<char>(i % 251);
  }
  directory.write("tokenizer.json", vocabulary);
  const uint32_t checksum = crc32c(std::as_bytes(std::span(vocabulary)));
  EXPECT_EQ(model_entries(Checkpoint(directory.path()))["tokenizer.json"],
            "2097155 bytes, crc32c " + checksum_text(checksum));
}

TEST(RunEntries, EveryFieldOfAPromptCounts) {
  const RunEntries plain = generation_entries({});
  Prompt prompt;
  const auto changes = [&](std::string_view name) {
    const RunEntries now = generation_entries(prompt);
    const std::string words = difference(plain, now, MissingEntries::differ);
    EXPECT_TRUE(words.starts_with(std::string(name) + " was ")) << words;
    prompt = {};
  };
  prompt.request.sampling.temperature = 0.7f;
  changes("--temp");
  prompt.request.sampling.top_k = 1;
  changes("--top-k");
  prompt.request.sampling.top_p = std::nextafter(1.0f, 0.0f);
  changes("--top-p");
  prompt.request.sampling.min_p = 1e-30f;
  changes("--min-p");
  prompt.request.sampling.repetition_penalty = 2;
  changes("--repeat-penalty");
  prompt.request.sampling.frequency_penalty = -1;
  changes("--frequency-penalty");
  prompt.request.sampling.presence_penalty = -1;
  changes("--presence-penalty");
  prompt.request.sampling.logit_bias = {
      {.token = 0, .bias = -std::numeric_limits<float>::infinity()}};
  changes("--logit-bias");
  prompt.request.seed = 0;
  changes("--seed");
  prompt.request.max_tokens = 0;
  changes("--predict");
  prompt.request.ignore_eos = true;
  changes("--ignore-eos");
  prompt.request.stop = {"a,b"};
  changes("--stop");
  prompt.request.stop_token_ids = {0};
  changes("--stop-token");
  prompt.request.samples = 2;
  changes("--samples");
  prompt.request.log_probs = 0;
  changes("--logprobs");
  prompt.echo = true;
  changes("--echo");
}

}  // namespace
}  // namespace sparsellm
