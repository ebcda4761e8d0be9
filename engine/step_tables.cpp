#include "engine/step_tables.h"

#include <algorithm>
#include <cassert>

#include "kernels/base/token_buckets.h"

namespace sparsellm {
namespace {

bool wants_logits(const Sequence& sequence, int64_t position) {
  if (position < sequence.reported || position >= sequence.prompt_length()) {
    return false;
  }
  const bool last_to_report = position == sequence.max_length - 1 && sequence.request().on_logits;
  return last_to_report || sequence.wants_prompt_logits();
}

SampleRow sample_row(const LogitRow& row) {
  if (!row.choice) {
    return {};
  }
  const Request& request = row.sequence->request();
  return {.slot = static_cast<int32_t>(*row.choice),
          .temperature = request.sampling.temperature,
          .top_k = request.sampling.top_k,
          .top_p = request.sampling.top_p,
          .min_p = request.sampling.min_p,
          .use_banned = request.ignore_eos ? 1 : 0,
          .seed = row.sequence->seed,
          .index = row.position + 1};
}

// The list has the tokens before the row's own, which may be not known yet: the device counts it.
// `token_row`: of the part's rows.
void add_adjustments(const LogitRow& row, int32_t index, int32_t token_row, RankStep::Part& part) {
  Sequence& sequence = *row.sequence;
  if (!row.choice || !sequence.adjustments) {
    return;
  }
  const int64_t prompt_length = sequence.prompt_length();
  sequence.adjustments->count(
      {.tokens = std::span(sequence.tokens).first(static_cast<size_t>(row.position)),
       .prompt_length = prompt_length});
  const std::span<const LogitAdjustment> all = sequence.adjustments->all();
  part.adjusted_rows.push_back({.row = index,
                                .last = token_row,
                                .first = static_cast<int32_t>(part.adjustments.size()),
                                .count = static_cast<int32_t>(all.size()) + 1,
                                .penalties = penalties_of(sequence.request().sampling),
                                .generated = row.position >= prompt_length ? 1 : 0});
  part.adjustments.insert(part.adjustments.end(), all.begin(), all.end());
  part.adjustments.emplace_back();
}

}  // namespace

void make_step_tables(std::span<const Scheduler::Chunk> chunks, std::span<const Choice> before,
                      StepTables& tables, std::vector<LogitRow>& logits) {
  tables.clear();
  logits.clear();
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
        logits.push_back({.sequence = &sequence,
                          .position = position,
                          .choice = chooses ? chunk.choice : std::nullopt});
      }
      if (position < sequence.known_length()) {
        tables.token_ids.push_back(sequence.tokens[static_cast<size_t>(position)]);
      } else if (const int64_t from = chunk.token_from.value(); from < std::ssize(before)) {
        tables.token_ids.push_back(before[static_cast<size_t>(from)].token);
      } else {
        tables.token_ids.push_back(static_cast<int32_t>(-1 - from));
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
}

bool has_prompt_log_probs(const LogitRow& row) {
  const Sequence& sequence = *row.sequence;
  return sequence.request().prompt_log_probs && sequence.sample == 0 &&
         row.position + 1 < sequence.prompt_length();
}

void PlannedStep::set(const Scheduler::Plan& plan, std::span<const Choice> before,
                      SampledOn sampled_on) {
  step_.clear();
  host_rows_.clear();
  log_prob_rows_.clear();
  step_.choices = plan.choices;
  std::span<const Scheduler::Chunk> chunks = plan.chunks;
  if (sampled_on == SampledOn::device) {
    const auto decode_end = std::find_if(chunks.begin(), chunks.end(),
                                         [](const Scheduler::Chunk& c) { return !c.decode; });
    const auto count = static_cast<size_t>(decode_end - chunks.begin());
    set_decode(chunks.first(count));
    chunks = chunks.subspan(count);
    before = {};  // the device knows all of it, the host only some
  }
  set_prefill(chunks, before, sampled_on);
}

void PlannedStep::set_decode(std::span<const Scheduler::Chunk> chunks) {
  if (chunks.empty()) {
    return;
  }
  RankStep::Part& part = step_.decode;
  make_step_tables(chunks, {}, part.tables, logits_);
  const int64_t bucket = token_bucket(part.tables.rows());
  part.samples.resize(static_cast<size_t>(bucket));
  for (size_t i = 0; i < logits_.size(); ++i) {
    const int32_t row = part.tables.logit_rows[i];
    add_row(logits_[i], row, row, SampledOn::device, part);
  }
  pad_decode_rows(part.tables, bucket);
}

void PlannedStep::set_prefill(std::span<const Scheduler::Chunk> chunks,
                              std::span<const Choice> before, SampledOn sampled_on) {
  RankStep::Part& part = step_.prefill;
  make_step_tables(chunks, before, part.tables, logits_);
  part.samples.resize(logits_.size());
  for (size_t i = 0; i < logits_.size(); ++i) {
    add_row(logits_[i], static_cast<int64_t>(i), part.tables.logit_rows[i], sampled_on, part);
  }
}

// `index`: of the row of logits; `token_row`: of the part's rows.
void PlannedStep::add_row(const LogitRow& row, int64_t index, int32_t token_row,
                          SampledOn sampled_on, RankStep::Part& part) {
  if (sampled_on == SampledOn::host || row.sequence->samples_on_host()) {
    part.host_rows.push_back(static_cast<int32_t>(index));
    host_rows_.push_back(row);
  } else {
    part.samples[static_cast<size_t>(index)] = sample_row(row);
    add_adjustments(row, static_cast<int32_t>(index), token_row, part);
    add_log_probs(row, static_cast<int32_t>(index), part);
  }
}

void PlannedStep::add_log_probs(const LogitRow& row, int32_t index, RankStep::Part& part) {
  Sequence& sequence = *row.sequence;
  const Request& request = sequence.request();
  if (request.log_probs && (row.choice || has_prompt_log_probs(row))) {
    const int32_t token = row.choice ? static_cast<int32_t>(-1 - *row.choice)
                                     : request.prompt[static_cast<size_t>(row.position) + 1];
    part.log_prob_rows.push_back({.row = index, .token = token, .top = *request.log_probs});
    log_prob_rows_.push_back(row);
  }
  if (row.position < sequence.prompt_length()) {
    sequence.reported = row.position + 1;  // not requested a second time
  }
}

}  // namespace sparsellm
