#include "kernels/log_probs.h"

#include <type_traits>

#include "kernels/checks.h"
#include "kernels/log_probs_device.h"
#include "kernels/sample.h"

namespace sparsellm {

static_assert(sizeof(LogProbRow) == 12 && std::is_trivially_copyable_v<LogProbRow>);
static_assert(sizeof(LogProbs) == 12 + 8 * kMaxDeviceLogProbs &&
              std::is_trivially_copyable_v<LogProbs>);

void log_probs(const Tensor& rows, const Tensor& tokens, int64_t first_row, const Tensor& logits,
               Tensor results, ExecContext& ctx) {
  require(ctx.device.is_cuda(), "log_probs: on {} the engine computes them", to_string(ctx.device));
  check_tensor({"log_probs", "rows"}, rows, Elements::i32, {kAnySize, kLogProbRowWords}, ctx);
  check_tensor({"log_probs", "logits"}, logits, Elements::f32, {kAnySize, kAnySize}, ctx);
  check_tensor({"log_probs", "results"}, results, Elements::i32, {rows.size(0), kLogProbsWords},
               ctx);
  check_disjoint({"log_probs", "rows and results"}, rows, results);
  check_disjoint({"log_probs", "logits and results"}, logits, results);
  if (!tokens.empty()) {
    check_tensor({"log_probs", "tokens"}, tokens, Elements::i32, {kAnySize}, ctx);
    check_disjoint({"log_probs", "tokens and results"}, tokens, results);
  }
  require(logits.size(1) >= 1 && logits.size(1) <= kMaxSampleVocabulary,
          "log_probs: a vocabulary of {} is not in [1, {}]", logits.size(1), kMaxSampleVocabulary);
  require(rows.contiguous() && logits.contiguous() && results.contiguous(),
          "log_probs: rows, logits and results have row strides {}, {} and {}; expected contiguous "
          "rows",
          rows.row_stride(), logits.row_stride(), results.row_stride());
  require(first_row >= 0, "log_probs: the first row is {}", first_row);
  log_probs_cuda(rows, tokens, first_row, logits, results, ctx);
}

}  // namespace sparsellm
