#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tests/testing/forwarding_runner.h"

namespace sparsellm::testing {

// A runner of the CPU that samples as one of a CUDA device does: by what stands in a step's tables
// alone, with tokens of the step before that the engine has yet to see. For tests of what an engine
// tells a device, and does with what it hears, without a GPU.
class SamplingRunner : public ForwardingRunner {
 public:
  // eos: RunnerOptions::eos.
  SamplingRunner(std::unique_ptr<StepRunner> runner, std::vector<int32_t> eos)
      : ForwardingRunner(std::move(runner)), eos_(std::move(eos)) {}

  int launch(const RankStep& step, const KvCache& kv) override;
  std::optional<Tensor> next_logits() override;
  std::span<const int32_t> finish(int number) override;
  std::span<const LogProbs> log_probs() const override { return finished_->log_probs; }
  bool samples() const override { return true; }

  // Of all steps so far.
  int64_t adjusted_rows() const { return adjusted_rows_; }
  int64_t log_prob_rows() const { return log_prob_rows_; }
  int64_t host_rows() const { return host_row_count_; }
  int64_t unknown_ids() const { return unknown_ids_; }

 private:
  struct Chosen {
    std::vector<int32_t> tokens;
    std::vector<LogProbs> log_probs;
  };

  void add(const RankStep::Part& part);
  void choose(const RankStep::Part& part, std::span<const int32_t> token_ids,
              std::span<const std::vector<float>> logits, Chosen& chosen);

  std::vector<int32_t> eos_;
  RankStep one_pass_;
  std::vector<int32_t> tokens_;   // chosen by the latest step
  std::array<Chosen, 2> chosen_;  // by the number of a step
  const Chosen* finished_ = nullptr;
  std::vector<float> host_logits_;  // of the latest step
  int64_t host_rows_ = 0;
  int64_t adjusted_rows_ = 0;
  int64_t log_prob_rows_ = 0;
  int64_t host_row_count_ = 0;
  int64_t unknown_ids_ = 0;
};

}  // namespace sparsellm::testing
