#pragma once

#include <cstdint>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// The likeliest tokens of a row that log_probs() tells.
inline constexpr int32_t kMaxDeviceLogProbs = 20;

struct LogProbRow {
  int32_t row = 0;    // of logits
  int32_t token = 0;  // whose log-probability is wanted; -1 - i: the one that stands at tokens[i]
  int32_t top = 0;    // likeliest tokens, 0 to kMaxDeviceLogProbs

  friend bool operator==(const LogProbRow&, const LogProbRow&) = default;
};
inline constexpr int64_t kLogProbRowWords = sizeof(LogProbRow) / sizeof(int32_t);

struct LogProbs {
  int32_t finite = 0;     // 0: a logit is NaN or infinite, and nothing else means anything
  int32_t token = 0;      // that of the row
  float log_prob = 0.0f;  // its; NaN if it is outside the vocabulary
  // Of the `top` largest logits, or as many as there are: the largest first, the smaller id of
  // equal ones. What lies behind them means nothing.
  int32_t top_tokens[kMaxDeviceLogProbs] = {};
  float top_log_probs[kMaxDeviceLogProbs] = {};
};
inline constexpr int64_t kLogProbsWords = sizeof(LogProbs) / sizeof(int32_t);

// ln softmax of rows of logits, for one token and the likeliest ones of each row: what
// token_log_probs() in engine/log_probability.h tells, within some 1e-6. On CUDA only.
//   rows     i32 [n, kLogProbRowWords]: LogProbRows
//   tokens   i32 [t], or empty if no row refers to one
//   logits   f32 [k, vocabulary], contiguous: the rows first_row, first_row + 1, ...; vocabulary 1
//            to kMaxSampleVocabulary (kernels/sample.h)
//   results  i32 [n, kLogProbsWords]: LogProbs. It overlaps no other operand.
// The bits of a result depend on the row of logits alone. What lies in `rows` and `tokens` is not
// checked, except for the token's id. It enqueues one kernel, with a block for each row, which goes
// over the row twice; no workspace. With 20 likeliest tokens an H200 takes 13 us for up to 132 rows
// of 32,000 logits and 58 us for 512 of them, 32 us for one of 151,936 and 54 us for 128. A row
// where hundreds of the largest logits are those of few of its 1,024 threads is read two to four
// times more.
void log_probs(const Tensor& rows, const Tensor& tokens, int64_t first_row, const Tensor& logits,
               Tensor results, ExecContext& ctx);

}  // namespace sparsellm
