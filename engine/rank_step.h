#pragma once

#include <cstdint>
#include <vector>

#include "kernels/adjust_logits.h"
#include "kernels/log_probs.h"
#include "kernels/sample.h"

namespace sparsellm {

// What a forward pass over some rows reads: the fields of StepInputs, in host memory.
struct StepTables {
  // An id that the step before has yet to choose is -1 - i, if it is the i-th that it chooses
  // (take_chosen()).
  std::vector<int32_t> token_ids;
  std::vector<int32_t> positions;
  std::vector<int32_t> query_start = {0};
  std::vector<int32_t> kv_length;
  std::vector<int32_t> page_table;  // [requests, page_stride]
  int64_t page_stride = 0;          // the most pages that one of the requests has
  std::vector<int32_t> logit_rows;  // rows whose logits are wanted: indices, ascending
  bool has_unknown_ids = false;
  int64_t generated = 0;  // rows, which come first (PagedBatch::generated)

  int64_t rows() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t requests() const { return static_cast<int64_t>(kv_length.size()); }
  // To no rows; keeps the memory, as do those below.
  void clear();

  friend bool operator==(const StepTables&, const StepTables&) = default;
};

// Appends padding (PagedBatch::decode) to tables of decode rows; it counts as generated.
void pad_decode_rows(StepTables& tables, int64_t rows);

// A step as a device computes it: numbers alone, nothing of requests.
struct RankStep {
  struct Part {
    StepTables tables;
    std::vector<SampleRow> samples;  // one for each row of logits
    // Those that the device adjusts before it samples; ascending.
    std::vector<AdjustedRow> adjusted_rows;
    std::vector<LogitAdjustment> adjustments;  // of the first of them, of the second, ...
    std::vector<LogProbRow> log_prob_rows;     // whose log-probabilities it tells; ascending
    std::vector<int32_t> host_rows;            // rows of logits that the host looks at, ascending

    void clear();
    friend bool operator==(const Part&, const Part&) = default;
  };
  // Decode rows that run as a pass of their own, on CUDA, padded to a token bucket: every row has a
  // row of logits.
  Part decode;
  // All others, of which those in logit_rows have logits. On the CPU all rows: one pass.
  Part prefill;
  int64_t choices = 0;  // tokens that the step chooses

  void clear();
  friend bool operator==(const RankStep&, const RankStep&) = default;
};

}  // namespace sparsellm
