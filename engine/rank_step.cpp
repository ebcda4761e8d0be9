#include "engine/rank_step.h"

namespace sparsellm {

void StepTables::clear() {
  for (std::vector<int32_t>* list :
       {&token_ids, &positions, &kv_length, &page_table, &logit_rows}) {
    list->clear();
  }
  query_start.resize(1);
  page_stride = 0;
  has_unknown_ids = false;
  generated = 0;
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

void RankStep::Part::clear() {
  tables.clear();
  samples.clear();
  adjusted_rows.clear();
  adjustments.clear();
  log_prob_rows.clear();
  host_rows.clear();
}

void RankStep::clear() {
  decode.clear();
  prefill.clear();
  choices = 0;
}

}  // namespace sparsellm
