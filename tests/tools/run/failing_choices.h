#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/testing/forwarding_runner.h"

namespace sparsellm::testing {

// In its second step the logits of these rows are NaN, so that their choices are errors: on the
// CPU.
class FailingChoices : public ForwardingRunner {
 public:
  FailingChoices(std::unique_ptr<StepRunner> runner, std::vector<int64_t> failing)
      : ForwardingRunner(std::move(runner)), failing_(std::move(failing)) {}

  int launch(const RankStep& step, const KvCache& kv) override {
    ++steps_;
    return ForwardingRunner::launch(step, kv);
  }
  std::optional<Tensor> next_logits() override {
    std::optional<Tensor> logits = ForwardingRunner::next_logits();
    if (logits && steps_ == 2) {
      for (int64_t row : failing_) {
        std::fill_n(logits->row<float>(row), logits->size(1),
                    std::numeric_limits<float>::quiet_NaN());
      }
    }
    return logits;
  }

 private:
  std::vector<int64_t> failing_;
  int64_t steps_ = 0;
};

}  // namespace sparsellm::testing
