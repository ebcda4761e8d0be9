#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace sparsellm::testing {

// What a checkpoint's reference.json holds: values computed independently in f32.
struct Reference {
  struct Greedy {
    std::optional<std::string> prompt;  // absent in checkpoints without a tokenizer
    std::vector<int32_t> ids;           // the prompt, BOS included
    std::vector<int32_t> top5_ids;      // after the prompt
    std::vector<float> top5_logits;
    std::vector<float> last_logits;  // all logits after the prompt; empty if not stored
    std::vector<int32_t> output_ids;
    std::optional<std::string> text;  // prompt and continuation
  };
  struct TokenizerSample {
    std::string text;
    std::vector<int32_t> ids;  // without BOS
    bool parse_special = false;
  };

  std::filesystem::path directory;
  std::vector<Greedy> greedy;
  std::vector<TokenizerSample> tokenizer_samples;
  std::optional<double> perplexity;  // of data("text/peter_pan.txt"), protocol "windows", 512
};

Reference read_reference(const std::filesystem::path& directory);

// The folders of checkpoints below tests/data/models and tests/data/tiny.
std::vector<std::filesystem::path> trained_checkpoints();
std::vector<std::filesystem::path> tiny_checkpoints();
std::vector<std::filesystem::path> all_checkpoints();

}  // namespace sparsellm::testing
