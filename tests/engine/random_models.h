#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "engine/engine.h"

namespace sparsellm::testing {

// Where the zeros of a block's linear layers are.
enum class BlockZeros : uint8_t {
  even,          // spread evenly
  mostly_even,   // in most layers
  dense_block,   // except for 64 x 128 elements of each layer, which are all nonzeros
  dense_blocks,  // except for one or more such blocks
  any,           // rows, columns or blocks differ, or they are spread evenly
};

// A Llama of two blocks whose linear layers are pruned, every layer in its own way.
struct RandomModel {
  int64_t hidden = 0;
  int64_t intermediate = 0;
  double sparsity = 0.0;  // of most of each layer
  std::array<BlockZeros, 2> zeros{};
  std::string format;  // that the weights are loaded in
  uint64_t seed = 0;
};

// The index-th of an endless list. 2 i and 2 i + 1 have the same shapes, sparsity and format, so
// that what is tuned for one is found by the other. In half of these pairs the first is even; in
// the others the first block of both is, and its plans need not fit the second. One side of half
// of them is of 7,168 columns or more.
RandomModel random_model(int64_t index, uint64_t seed);
std::string to_string(const RandomModel& model);

// A checkpoint of f16 weights, without a tokenizer.
class RandomCheckpoint {
 public:
  // Writes it.
  RandomCheckpoint(std::filesystem::path directory, const RandomModel& model);

  struct Outcome {
    std::string wrong;  // one line, or nothing
    int64_t tuned_choices = 0;
  };
  // Loads it on the first GPU, tuned, in the model's format, and generates some tokens, alone and
  // with others. Each has on the CPU device a logit within 0.02 of the largest.
  Outcome check(const std::filesystem::path& tune_cache);

 private:
  std::string wrong_tokens(Engine& on_gpu);

  std::filesystem::path directory_;
  RandomModel model_;
  std::optional<Engine> on_cpu_;  // once it is needed
};

}  // namespace sparsellm::testing
