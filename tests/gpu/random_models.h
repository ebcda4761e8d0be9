#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace sparsellm::testing {

// A Llama of two blocks whose linear layers are pruned unevenly, every layer in its own way.
struct RandomModel {
  int64_t hidden = 0;
  int64_t intermediate = 0;
  double sparsity = 0.0;  // of most of each layer
  bool even = false;      // no layer has dense parts
  std::string format;     // that the weights are loaded in
  uint64_t seed = 0;
};

// The index-th of an endless list. 2 i and 2 i + 1 have the same shapes, sparsity and format, and
// the first of them is even, so that what is tuned for one is found by the other.
RandomModel random_model(int64_t index, uint64_t seed);
std::string to_string(const RandomModel& model);

// Makes a checkpoint of f16 weights, without a tokenizer.
void write_random_model(const std::filesystem::path& directory, const RandomModel& model);

// Loads a checkpoint on the first GPU, tuned, in the model's format, and generates some tokens,
// alone and with others. Each has on the CPU device a logit within 0.02 of the largest. Returns
// what is wrong, or nothing.
std::string check_random_model(const std::filesystem::path& directory, const RandomModel& model,
                               const std::filesystem::path& tune_cache);

}  // namespace sparsellm::testing
