#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/scheduler.h"

namespace sparsellm {

// A row of a step whose logits are wanted.
struct LogitRow {
  Sequence* sequence = nullptr;
  int64_t position = 0;           // of the row's token in the sequence
  std::optional<int64_t> choice;  // of the plan: the sequence's next token is chosen from the row
};

// What a forward pass over some successive chunks of a plan reads: the fields of StepInputs, in
// host memory.
struct StepTables {
  // An id that the step before has yet to choose is -1 - Chunk::token_from (take_chosen()).
  std::vector<int32_t> token_ids;
  std::vector<int32_t> positions;
  std::vector<int32_t> query_start;
  std::vector<int32_t> kv_length;
  std::vector<int32_t> page_table;  // [requests, page_stride]
  int64_t page_stride = 0;          // the most pages that one of the requests has
  std::vector<int32_t> logit_rows;  // indices of rows, ascending
  std::vector<LogitRow> logits;     // what they are
  bool has_unknown_ids = false;
  int64_t generated = 0;  // rows, which come first (PagedBatch::generated)

  int64_t rows() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t requests() const { return static_cast<int64_t>(kv_length.size()); }
};
StepTables step_tables(std::span<const Scheduler::Chunk> chunks);

// Appends padding (PagedBatch::decode) to tables of decode rows; it counts as generated.
void pad_decode_rows(StepTables& tables, int64_t rows);

}  // namespace sparsellm
