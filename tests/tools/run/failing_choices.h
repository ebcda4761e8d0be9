#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/step_runner.h"

namespace sparsellm::testing {

// In its second step the choices at these places are errors.
class FailingChoices : public StepRunner {
 public:
  FailingChoices(std::unique_ptr<StepRunner> runner, std::vector<size_t> failing)
      : runner_(std::move(runner)), failing_(std::move(failing)) {}

  void launch(Step& step, const KvCache& kv) override { runner_->launch(step, kv); }
  void finish(Step& step) override {
    runner_->finish(step);
    if (++steps_ == 2) {
      for (size_t i : failing_) {
        step.choices.at(i).error = "no token for you";
      }
    }
  }
  void warm_up(const KvCache& kv) override { runner_->warm_up(kv); }
  ExecContext& exec() override { return runner_->exec(); }
  int64_t memory_bytes() const override { return runner_->memory_bytes(); }
  std::vector<std::pair<std::string, double>> decode_seconds() const override { return {}; }
  int64_t waits() const override { return runner_->waits(); }

 private:
  std::unique_ptr<StepRunner> runner_;
  std::vector<size_t> failing_;
  int64_t steps_ = 0;
};

}  // namespace sparsellm::testing
