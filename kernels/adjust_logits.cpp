#include "kernels/adjust_logits.h"

#include <type_traits>

#include "kernels/adjust_logits_device.h"
#include "kernels/checks.h"

namespace sparsellm {
namespace {

static_assert(sizeof(LogitAdjustment) == 12 && std::is_trivially_copyable_v<LogitAdjustment>);
static_assert(sizeof(AdjustedRow) == 32 && std::is_trivially_copyable_v<AdjustedRow>);

void check_adjusted(std::string_view op, const Tensor& rows, const Tensor& adjustments,
                    int64_t first_row, const Tensor& logits, const ExecContext& ctx) {
  require(ctx.device.is_cuda(), "{}: on {} logits are adjusted by the engine", op,
          to_string(ctx.device));
  check_tensor({op, "rows"}, rows, Elements::i32, {kAnySize, kAdjustedRowWords}, ctx);
  check_tensor({op, "adjustments"}, adjustments, Elements::i32, {kAnySize, kLogitAdjustmentWords},
               ctx);
  check_tensor({op, "logits"}, logits, Elements::f32, {kAnySize, kAnySize}, ctx);
  check_disjoint({op, "rows and logits"}, rows, logits);
  check_disjoint({op, "adjustments and logits"}, adjustments, logits);
  check_disjoint({op, "rows and adjustments"}, rows, adjustments);
  require(rows.contiguous() && adjustments.contiguous() && logits.contiguous(),
          "{}: rows, adjustments and logits have row strides {}, {} and {}; expected contiguous "
          "rows",
          op, rows.row_stride(), adjustments.row_stride(), logits.row_stride());
  require(first_row >= 0, "{}: the first row is {}", op, first_row);
}

}  // namespace

void adjust_logits(const Tensor& rows, const Tensor& tokens, Tensor adjustments, int64_t first_row,
                   Tensor logits, ExecContext& ctx) {
  check_adjusted("adjust_logits", rows, adjustments, first_row, logits, ctx);
  check_tensor({"adjust_logits", "tokens"}, tokens, Elements::i32, {kAnySize}, ctx);
  check_disjoint({"adjust_logits", "tokens and adjustments"}, tokens, adjustments);
  check_disjoint({"adjust_logits", "tokens and logits"}, tokens, logits);
  adjust_logits_cuda(rows, tokens, adjustments, first_row, logits, ctx);
}

void restore_logits(const Tensor& rows, const Tensor& adjustments, int64_t first_row, Tensor logits,
                    ExecContext& ctx) {
  check_adjusted("restore_logits", rows, adjustments, first_row, logits, ctx);
  restore_logits_cuda(rows, adjustments, first_row, logits, ctx);
}

}  // namespace sparsellm
