#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/delivery.h"
#include "engine/rank_step.h"
#include "engine/scheduler.h"

namespace sparsellm {

// A row of a step whose logits are wanted.
struct LogitRow {
  Sequence* sequence = nullptr;
  int64_t position = 0;           // of the row's token in the sequence
  std::optional<int64_t> choice;  // of the plan: the sequence's next token is chosen from the row
};

// The tables of some successive chunks of a plan, and what their logit_rows are. `before`: what the
// step before has chosen, as far as the host knows; ids beyond it are those that are not known yet.
// What stood in `tables` and `logits` goes, their memory is used again.
void make_step_tables(std::span<const Scheduler::Chunk> chunks, std::span<const Choice> before,
                      StepTables& tables, std::vector<LogitRow>& logits);

// Whether the row's logits are wanted for the log-probability of the prompt's next token.
bool has_prompt_log_probs(const LogitRow& row);

// Where tokens are chosen.
enum class SampledOn : uint8_t {
  host,    // on the CPU device all of them
  device,  // on CUDA all but those of sequences that need the host (Sequence::samples_on_host())
};

// A plan as ranks compute it, and what is known of its rows where the requests are.
class PlannedStep {
 public:
  // Takes the place of the plan before; `before` as above.
  void set(const Scheduler::Plan& plan, std::span<const Choice> before, SampledOn sampled_on);

  const RankStep& step() const { return step_; }
  // Of the host_rows of both parts, decode first: in the order of StepRunner::next_logits().
  std::span<const LogitRow> host_rows() const { return host_rows_; }
  // Of their log_prob_rows: in the order of StepRunner::log_probs().
  std::span<const LogitRow> log_prob_rows() const { return log_prob_rows_; }

 private:
  void set_decode(std::span<const Scheduler::Chunk> chunks);
  void set_prefill(std::span<const Scheduler::Chunk> chunks, std::span<const Choice> before,
                   SampledOn sampled_on);
  void add_row(const LogitRow& row, int64_t index, int32_t token_row, SampledOn sampled_on,
               RankStep::Part& part);
  void add_log_probs(const LogitRow& row, int32_t index, RankStep::Part& part);

  RankStep step_;
  std::vector<LogitRow> host_rows_;
  std::vector<LogitRow> log_prob_rows_;
  std::vector<LogitRow> logits_;  // of a part
};

}  // namespace sparsellm
