#include "tests/engine/sampling_runner.h"

#include <algorithm>
#include <cmath>

#include "engine/log_probability.h"
#include "engine/sampler.h"
#include "kernels/base/error.h"
#include "kernels/sample.h"

namespace sparsellm::testing {
namespace {

bool all_are_finite(std::span<const float> logits) {
  return std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); });
}

// As in kernels/adjust_logits.h; tokens that are forbidden are put into `banned`.
std::vector<float> adjusted(std::span<const float> logits, const AdjustedRow& row,
                            const RankStep::Part& part, std::span<const int32_t> token_ids,
                            std::vector<int32_t>& banned) {
  std::vector<float> result(logits.begin(), logits.end());
  const int32_t latest = token_ids[static_cast<size_t>(row.last)];
  const auto adjust = [&](int32_t token, int32_t count, float bias) {
    float& logit = result[static_cast<size_t>(token)];
    const float value = adjusted_logit(logit, count, bias, row.penalties);
    if (std::isinf(value)) {
      banned.push_back(token);
    } else {
      logit = value;
    }
  };
  bool found = false;
  const std::span<const LogitAdjustment> list =
      std::span(part.adjustments)
          .subspan(static_cast<size_t>(row.first), static_cast<size_t>(row.count));
  for (const LogitAdjustment& one : list.first(list.size() - 1)) {
    const bool is_latest = one.token == latest;
    found = found || is_latest;
    adjust(one.token, is_latest ? std::max(one.count, 0) + row.generated : one.count, one.bias);
  }
  if (!found) {
    adjust(latest, row.generated, 0.0f);
  }
  return result;
}

LogProbs told_of(std::span<const float> logits, int32_t token, int32_t top) {
  LogProbs told{.finite = all_are_finite(logits) ? 1 : 0, .token = token};
  if (told.finite != 0 && token >= 0) {
    const TokenLogProbs values = token_log_probs(logits, token, top);
    told.log_prob = values.token.log_prob;
    for (size_t i = 0; i < values.top.size(); ++i) {
      told.top_tokens[i] = values.top[i].token;
      told.top_log_probs[i] = values.top[i].log_prob;
    }
  }
  return told;
}

}  // namespace

// Appends the requests of a part, without padding.
void SamplingRunner::add(const RankStep::Part& part) {
  StepTables& to = one_pass_.prefill.tables;
  const StepTables& from = part.tables;
  const auto first = static_cast<int32_t>(to.rows());
  for (int64_t r = 0; r < from.requests(); ++r) {
    const auto at = static_cast<size_t>(r);
    if (from.kv_length[at] == 0) {
      continue;
    }
    for (int32_t row = from.query_start[at]; row < from.query_start[at + 1]; ++row) {
      int32_t id = from.token_ids[static_cast<size_t>(row)];
      if (id < 0) {
        ++unknown_ids_;
        id = std::max(tokens_.at(static_cast<size_t>(-1 - id)), 0);
      }
      to.token_ids.push_back(id);
      to.positions.push_back(from.positions[static_cast<size_t>(row)]);
    }
    to.query_start.push_back(static_cast<int32_t>(to.rows()));
    to.kv_length.push_back(from.kv_length[at]);
    for (int64_t page = 0; page < to.page_stride; ++page) {
      to.page_table.push_back(
          page < from.page_stride
              ? from.page_table[static_cast<size_t>(r * from.page_stride + page)]
              : -1);
    }
  }
  for (const int32_t row : from.logit_rows) {
    to.logit_rows.push_back(first + row);
  }
  to.generated += std::min(from.generated, to.rows() - first);
}

int SamplingRunner::launch(const RankStep& step, const KvCache& kv) {
  one_pass_.clear();
  RankStep::Part& pass = one_pass_.prefill;
  pass.tables.page_stride =
      std::max(step.decode.tables.page_stride, step.prefill.tables.page_stride);
  add(step.decode);
  const auto decode_rows = static_cast<size_t>(pass.tables.rows());
  const size_t decode_logits = pass.tables.logit_rows.size();
  add(step.prefill);
  pass.samples.resize(pass.tables.logit_rows.size());
  for (size_t i = 0; i < pass.samples.size(); ++i) {
    pass.host_rows.push_back(static_cast<int32_t>(i));
  }
  const int number = ForwardingRunner::launch(one_pass_, kv);
  std::vector<std::vector<float>> logits;
  while (const std::optional<Tensor> some = ForwardingRunner::next_logits()) {
    for (int64_t row = 0; row < some->size(0); ++row) {
      logits.emplace_back(some->row<float>(row), some->row<float>(row) + some->size(1));
    }
  }
  // All rows of a decode part have a row of logits, also those of which nothing is wanted.
  std::vector<std::vector<float>> of_decode(decode_rows);
  for (size_t i = 0; i < decode_logits; ++i) {
    of_decode[static_cast<size_t>(pass.tables.logit_rows[i])] = logits[i];
  }
  const std::span<const std::vector<float>> of_prefill = std::span(logits).subspan(decode_logits);
  const std::span<const int32_t> ids = pass.tables.token_ids;
  Chosen& chosen = chosen_.at(static_cast<size_t>(number));
  chosen.log_probs.clear();
  tokens_.resize(std::max(tokens_.size(), static_cast<size_t>(step.choices)));
  choose(step.decode, ids.first(decode_rows), of_decode, chosen);
  choose(step.prefill, ids.subspan(decode_rows), of_prefill, chosen);
  chosen.tokens = tokens_;
  host_logits_.clear();
  for (const int32_t row : step.decode.host_rows) {
    const std::vector<float>& values = of_decode[static_cast<size_t>(row)];
    host_logits_.insert(host_logits_.end(), values.begin(), values.end());
  }
  for (const int32_t row : step.prefill.host_rows) {
    const std::vector<float>& values = of_prefill[static_cast<size_t>(row)];
    host_logits_.insert(host_logits_.end(), values.begin(), values.end());
  }
  host_rows_ = std::ssize(step.decode.host_rows) + std::ssize(step.prefill.host_rows);
  host_row_count_ += host_rows_;
  return number;
}

void SamplingRunner::choose(const RankStep::Part& part, std::span<const int32_t> token_ids,
                            std::span<const std::vector<float>> logits, Chosen& chosen) {
  for (size_t i = 0; i < part.samples.size(); ++i) {
    const SampleRow& row = part.samples[i];
    if (row.slot < 0) {
      continue;
    }
    SamplingParams params;
    params.temperature = row.temperature;
    params.top_k = row.top_k;
    params.top_p = row.top_p;
    params.min_p = row.min_p;
    std::vector<int32_t> banned = row.use_banned != 0 ? eos_ : std::vector<int32_t>();
    std::vector<float> values = logits[i];
    const auto with = std::ranges::find(part.adjusted_rows, static_cast<int32_t>(i),
                                        [](const AdjustedRow& r) { return r.row; });
    if (with != part.adjusted_rows.end() && all_are_finite(values)) {
      values = adjusted(values, *with, part, token_ids, banned);
    }
    int32_t& token = tokens_[static_cast<size_t>(row.slot)];
    try {
      token = sample_token(values, params, {}, banned, row.seed, row.index);
    } catch (const Error&) {
      token = kNoToken;
    }
  }
  for (const LogProbRow& row : part.log_prob_rows) {
    const int32_t token =
        row.token < 0 ? tokens_.at(static_cast<size_t>(-1 - row.token)) : row.token;
    chosen.log_probs.push_back(told_of(logits[static_cast<size_t>(row.row)], token, row.top));
  }
  adjusted_rows_ += std::ssize(part.adjusted_rows);
  log_prob_rows_ += std::ssize(part.log_prob_rows);
}

std::optional<Tensor> SamplingRunner::next_logits() {
  if (host_rows_ == 0) {
    return std::nullopt;
  }
  const int64_t rows = host_rows_;
  host_rows_ = 0;
  return Tensor(host_logits_.data(), DType::f32, {rows, std::ssize(host_logits_) / rows}, Device{});
}

std::span<const int32_t> SamplingRunner::finish(int number) {
  ForwardingRunner::finish(number);
  finished_ = &chosen_.at(static_cast<size_t>(number));
  return finished_->tokens;
}

}  // namespace sparsellm::testing
