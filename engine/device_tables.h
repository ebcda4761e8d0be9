#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "engine/rank_step.h"
#include "kernels/base/buffer.h"
#include "kernels/base/cuda_context.h"
#include "kernels/base/pinned_buffer.h"
#include "kernels/sample.h"
#include "models/step_inputs.h"

namespace sparsellm {

// The tables of a step's rows on a CUDA device. Where a table lies depends on the number of rows
// and requests alone, so that a captured graph for a number of rows finds it again. What was sent
// must be on the device before the slot's staging memory is filled for another step: steps use
// kSlots slots in turn.
class DeviceTables {
 public:
  static constexpr int kSlots = 2;

  DeviceTables(Device device, int64_t max_rows, int64_t max_requests, int64_t pages_per_request);

  struct Views {
    StepInputs inputs;
    Tensor logit_rows;   // i32 [logit rows]
    Tensor sample_rows;  // i32 [logit rows, kSampleRowWords]
  };
  // Enqueues the copy. sample_rows: one for each of tables.logits, or, for padded decode rows,
  // whose logit_rows are not read, one for each of the rows.
  Views send(const StepTables& tables, std::span<const SampleRow> sample_rows, int slot,
             const CudaContext& cuda);

  // The tables of `rows` decode rows, one for each request, all with logits.
  Views decode_views(int64_t rows) const;

  // What tables of this size hold on the device.
  static int64_t bytes_of(int64_t max_rows, int64_t max_requests, int64_t pages_per_request);
  int64_t bytes() const { return words_.buffer.bytes() + page_table_.buffer.bytes(); }

 private:
  Views views(int64_t rows, int64_t requests, int64_t logit_rows) const;

  Device device_;
  OwnedTensor words_;       // all tables but one, one after the other
  OwnedTensor page_table_;  // [max_requests, pages_per_request]
  std::array<PinnedBuffer, kSlots> staged_words_;
  std::array<PinnedBuffer, kSlots> staged_pages_;
};

}  // namespace sparsellm
