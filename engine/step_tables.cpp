#include "engine/step_tables.h"

#include <algorithm>
#include <cassert>

namespace sparsellm {
namespace {

bool wants_logits(const Sequence& sequence, int64_t position) {
  if (position < sequence.reported || position >= sequence.prompt_length()) {
    return false;
  }
  const bool last_to_report = position == sequence.max_length - 1 && sequence.request().on_logits;
  return last_to_report || sequence.wants_prompt_logits();
}

}  // namespace

StepTables step_tables(std::span<const Scheduler::Chunk> chunks) {
  StepTables tables;
  tables.query_start.push_back(0);
  for (const Scheduler::Chunk& chunk : chunks) {
    Sequence& sequence = *chunk.sequence;
    const int64_t end = chunk.first + chunk.count;
    if (chunk.generated()) {
      assert(tables.generated == tables.rows());
      tables.generated += chunk.count;
    }
    for (int64_t position = chunk.first; position < end; ++position) {
      const bool chooses = chunk.choice.has_value() && position == end - 1;
      if (chooses || wants_logits(sequence, position)) {
        tables.logit_rows.push_back(static_cast<int32_t>(tables.rows()));
        tables.logits.push_back({.sequence = &sequence,
                                 .position = position,
                                 .choice = chooses ? chunk.choice : std::nullopt});
      }
      if (position < sequence.known_length()) {
        tables.token_ids.push_back(sequence.tokens[static_cast<size_t>(position)]);
      } else {
        tables.token_ids.push_back(static_cast<int32_t>(-1 - chunk.token_from.value()));
        tables.has_unknown_ids = true;
      }
      tables.positions.push_back(static_cast<int32_t>(position));
    }
    tables.query_start.push_back(static_cast<int32_t>(tables.rows()));
    tables.kv_length.push_back(static_cast<int32_t>(end));
    tables.page_stride = std::max(tables.page_stride, std::ssize(sequence.pages));
  }
  for (const Scheduler::Chunk& chunk : chunks) {
    const std::vector<int32_t>& pages = chunk.sequence->pages;
    tables.page_table.insert(tables.page_table.end(), pages.begin(), pages.end());
    tables.page_table.resize(
        tables.page_table.size() + static_cast<size_t>(tables.page_stride) - pages.size(), -1);
  }
  return tables;
}

void pad_decode_rows(StepTables& tables, int64_t rows) {
  for (int64_t row = tables.rows(); row < rows; ++row) {
    tables.token_ids.push_back(0);
    tables.positions.push_back(-1);
    tables.kv_length.push_back(0);
    tables.query_start.push_back(static_cast<int32_t>(tables.rows()));
  }
  tables.page_table.resize(static_cast<size_t>(rows * tables.page_stride), -1);
  tables.generated = tables.rows();
}

}  // namespace sparsellm
