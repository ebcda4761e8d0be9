#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/penalties.h"
#include "kernels/adjust_logits.h"
#include "tests/kernels/sample_gpu_fixture.h"

namespace sparsellm::testing {

// The device's penalties and biases against the engine's, and the tokens that are sampled then.
class AdjustLogits : public Sample {
 protected:
  // A sequence whose next token is chosen from row `row`.
  struct Adjusted {
    int32_t row = 0;
    SamplingParams params = {};
    std::vector<int32_t> tokens = {};  // at least one; the last one is known to the device alone
    int64_t prompt_length = 1;
    uint64_t seed = 0;
  };

  // What the device makes of rows of logits: sampled tokens by row (kNoToken where the engine
  // throws), adjusted logits bit by bit, and the logits as they were when they are restored. Other
  // rows stay as they are.
  void expect_engines(std::string_view what, std::span<const float> logits, int64_t vocabulary,
                      std::span<const Adjusted> sequences, int64_t first_row = 0);

  // Prompt and continuation of this length, of few different ids of the vocabulary.
  std::vector<int32_t> random_tokens(int64_t length, int64_t vocabulary);
  // Biases of some tokens of the vocabulary; one in three is -infinity.
  std::vector<LogitBias> random_biases(int64_t count, int64_t vocabulary);
  // A few sequences for each of many penalties and biases, with rows in ascending order.
  std::vector<Adjusted> random_sequences(int64_t vocabulary);
};

}  // namespace sparsellm::testing
