#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/log_probs.h"
#include "tests/kernels/sample_gpu_fixture.h"

namespace sparsellm::testing {

// The device's log-probabilities against a naive softmax in double and a full sort.
class LogProbsOfRows : public Sample {
 protected:
  // Of rows of logits, of which the first is row `first_row`; tokens: what rows may refer to.
  std::vector<LogProbs> on_gpu(std::span<const float> logits, int64_t vocabulary,
                               std::span<const LogProbRow> rows,
                               std::span<const int32_t> tokens = {}, int64_t first_row = 0);

  // The same tokens at the same places, and values within some 1e-6.
  void expect_naive(std::string_view what, std::span<const float> logits, int64_t vocabulary,
                    std::span<const LogProbRow> rows, std::span<const int32_t> tokens = {},
                    int64_t first_row = 0);
};

}  // namespace sparsellm::testing
