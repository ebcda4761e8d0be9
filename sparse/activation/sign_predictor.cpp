#include "sparse/activation/sign_predictor.h"

#include <cmath>
#include <string_view>

#include "kernels/checks.h"
#include "sparse/activation/sign_predictor_device.h"

namespace sparsellm {
namespace {

void check_votes(std::string_view op, const Tensor& x, const SignWords& w, const ExecContext& ctx) {
  check_tensor({op, "x"}, x, Elements::activation, {kAnySize, w.columns}, ctx);
  check_tensor({op, "signs"}, w.signs, Elements::u32, {kAnySize, sign_word_count(w.columns)}, ctx);
  if (!w.nonzero.empty()) {
    check_tensor({op, "nonzero"}, w.nonzero, Elements::u32, {w.rows(), sign_word_count(w.columns)},
                 ctx);
  }
  require(w.columns <= kMaxVoteColumns, "{}: votes of {} columns; at most {}", op, w.columns,
          kMaxVoteColumns);
}

}  // namespace

void predict_active(const Tensor& x, const SignWords& w, const SignPrediction& how, Tensor active,
                    ExecContext& ctx) {
  constexpr std::string_view kOp = "predict_active";
  check_votes(kOp, x, w, ctx);
  check_tensor({kOp, "active"}, active, Elements::u8, {x.size(0), w.rows()}, ctx);
  require(std::isfinite(how.alpha) && how.alpha > 0.0f,
          "{}: alpha is {}; expected a finite number above 0", kOp, how.alpha);
  ctx.device.is_cuda() ? predict_active_cuda(x, w, how, active, ctx)
                       : predict_active_cpu(x, w, how, active, ctx);
}

void count_votes(const Tensor& x, const SignWords& w, Votes votes, Tensor negative, Tensor positive,
                 ExecContext& ctx) {
  constexpr std::string_view kOp = "count_votes";
  check_votes(kOp, x, w, ctx);
  check_tensor({kOp, "negative"}, negative, Elements::i32, {x.size(0), w.rows()}, ctx);
  check_tensor({kOp, "positive"}, positive, Elements::i32, {x.size(0), w.rows()}, ctx);
  check_disjoint({kOp, "negative and positive"}, negative, positive);
  ctx.device.is_cuda() ? count_votes_cuda(x, w, votes, negative, positive, ctx)
                       : count_votes_cpu(x, w, votes, negative, positive, ctx);
}

int64_t sign_predictor_workspace_bytes(Device device, int64_t columns, int64_t tokens) {
  return device.is_cuda() ? sign_predictor_workspace_bytes_cuda(columns, tokens)
                          : sign_predictor_workspace_bytes_cpu(columns, tokens);
}

}  // namespace sparsellm
