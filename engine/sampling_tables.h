#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "engine/device_tables.h"
#include "engine/rank_step.h"
#include "kernels/base/buffer.h"
#include "kernels/base/cuda_context.h"
#include "kernels/base/pinned_buffer.h"

namespace sparsellm {

// What a step has on a CUDA device for rows whose logits are adjusted or whose log-probabilities
// are requested, and the log-probabilities. Nothing is copied for a step without such rows. Slots
// are those of DeviceTables: a slot is used again after its step has finished.
class SamplingTables {
 public:
  struct Limits {
    int64_t max_requests = 0;
    int64_t step_tokens = 0;
    int64_t vocabulary = 0;
  };

  SamplingTables(Device device, const Limits& limits);

  // Of a part: of its adjusted_rows, adjustments and log_prob_rows.
  struct Views {
    Tensor adjusted_rows;  // i32 [n, kAdjustedRowWords]
    Tensor adjustments;    // i32 [n, kLogitAdjustmentWords]
    Tensor log_prob_rows;  // i32 [n, kLogProbRowWords]
    Tensor log_probs;      // i32 [the same n, kLogProbsWords]
  };
  struct StepViews {
    Views decode;
    Views prefill;
  };
  // Enqueues the copy.
  StepViews send(const RankStep& step, int slot, const CudaContext& cuda);

  // Enqueues the copy of the log-probabilities of the step that was sent with this slot, which are
  // then shown until it is used again: those of its decode part first.
  void fetch_log_probs(int slot, const CudaContext& cuda);
  std::span<const LogProbs> log_probs(int slot) const;

  // What tables with these limits hold on the device.
  static int64_t bytes_of(const Limits& limits);
  int64_t bytes() const { return tables_.buffer.bytes() + log_probs_.buffer.bytes(); }

 private:
  struct Slot {
    PinnedBuffer tables;  // both as large as steps have needed so far: most need nothing
    PinnedBuffer log_probs;
    int64_t log_prob_rows = 0;
  };

  OwnedTensor tables_;     // i32: all tables but one, one after the other
  OwnedTensor log_probs_;  // i32 [step_tokens, kLogProbsWords]
  std::array<Slot, DeviceTables::kSlots> slots_;
};

}  // namespace sparsellm
