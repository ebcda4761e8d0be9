#include "kernels/sample.h"

#include "kernels/checks.h"
#include "kernels/sample_device.h"

namespace sparsellm {

void sample(const Tensor& logits, const Tensor& rows, const Tensor& banned, Tensor tokens,
            ExecContext& ctx) {
  require(ctx.device.is_cuda(), "sample: on {} tokens are sampled by the engine",
          to_string(ctx.device));
  check_tensor({"sample", "logits"}, logits, Elements::f32, {kAnySize, kAnySize}, ctx);
  check_tensor({"sample", "rows"}, rows, Elements::i32, {logits.size(0), kSampleRowWords}, ctx);
  check_tensor({"sample", "tokens"}, tokens, Elements::i32, {kAnySize}, ctx);
  check_disjoint({"sample", "logits and tokens"}, logits, tokens);
  check_disjoint({"sample", "rows and tokens"}, rows, tokens);
  if (!banned.empty()) {
    check_tensor({"sample", "banned"}, banned, Elements::i32, {kAnySize}, ctx);
    check_disjoint({"sample", "banned and tokens"}, banned, tokens);
  }
  require(logits.size(1) >= 1 && logits.size(1) <= kMaxSampleVocabulary,
          "sample: a vocabulary of {} is not in [1, {}]", logits.size(1), kMaxSampleVocabulary);
  require(logits.contiguous(), "sample: logits {} have the row stride {}; expected contiguous rows",
          logits.shape_string(), logits.row_stride());
  require(rows.contiguous(), "sample: rows {} have the row stride {}; expected contiguous rows",
          rows.shape_string(), rows.row_stride());
  require(reinterpret_cast<uintptr_t>(rows.raw()) % alignof(SampleRow) == 0,
          "sample: rows are not aligned to {} bytes", alignof(SampleRow));
  sample_cuda(logits, rows, banned, tokens, ctx);
}

}  // namespace sparsellm
