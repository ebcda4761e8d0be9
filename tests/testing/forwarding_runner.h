#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/step_runner.h"

namespace sparsellm::testing {

// A runner that is another one, for those that differ from it in something.
class ForwardingRunner : public StepRunner {
 public:
  explicit ForwardingRunner(std::unique_ptr<StepRunner> runner) : runner_(std::move(runner)) {}

  int launch(const RankStep& step, const KvCache& kv) override { return runner_->launch(step, kv); }
  std::optional<Tensor> next_logits() override { return runner_->next_logits(); }
  void give_up() noexcept override { runner_->give_up(); }
  std::span<const int32_t> finish(int number) override { return runner_->finish(number); }
  std::span<const LogProbs> log_probs() const override { return runner_->log_probs(); }
  void warm_up(const KvCache& kv) override { runner_->warm_up(kv); }
  bool samples() const override { return runner_->samples(); }
  ExecContext& exec() override { return runner_->exec(); }
  int64_t memory_bytes() const override { return runner_->memory_bytes(); }
  std::vector<std::pair<std::string, double>> decode_seconds() const override {
    return runner_->decode_seconds();
  }
  int64_t waits() const override { return runner_->waits(); }

 private:
  std::unique_ptr<StepRunner> runner_;
};

}  // namespace sparsellm::testing
