#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/scheduler.h"
#include "kernels/base/buffer.h"
#include "models/step_inputs.h"

namespace sparsellm {

// A row of a step whose logits are wanted.
struct LogitRow {
  Sequence* sequence = nullptr;
  int64_t position = 0;           // of the row's token in the sequence
  std::optional<int64_t> choice;  // of the plan: the sequence's next token is chosen from the row
};

// Turns a plan into the tensors that a forward pass reads, at fixed device addresses.
class StepUpload {
 public:
  StepUpload(Device device, SchedulerLimits limits, int64_t pages_per_request);

  struct Step {
    StepInputs inputs;
    Tensor logit_rows;             // i32 [n], indices of the step's rows, ascending
    std::vector<LogitRow> logits;  // what these n rows are
  };
  // chosen i32 [max_requests], on the device: the tokens that the step before chose or will have
  // chosen; Chunk::token_from counts in them.
  Step upload(const Scheduler::Plan& plan, const Tensor& chosen);

 private:
  Tensor send(const std::vector<int32_t>& values, const OwnedTensor& to) const;

  Device device_;
  int64_t pages_per_request_;
  OwnedTensor token_ids_;
  OwnedTensor positions_;
  OwnedTensor query_start_;
  OwnedTensor kv_length_;
  OwnedTensor page_table_;
  OwnedTensor logit_rows_;
};

}  // namespace sparsellm
