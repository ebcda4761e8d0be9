#include <algorithm>
#include <iterator>
#include <variant>

#include "kernels/gemm_candidates.cuh"
#include "kernels/gemm_invariance.cuh"

namespace sparsellm {
namespace {

constexpr int64_t kTokens[] = {2, 3, 8, 16, 17, 64, 100, 128, 200, 1000, kInvariantTokens};
constexpr int64_t kProbes = 4;  // rows that are compared

}  // namespace

GemmInvariance::AlignedRows::AlignedRows(const Tensor& example, int64_t rows, ExecContext& ctx) {
  const int64_t columns = example.size(1);
  const int64_t alignment = row_alignment(example) / size_of(example.dtype());  // in elements
  // A Buffer is aligned to the most; one step off its rows are aligned to one step.
  const int64_t first = row_alignment(example) < kMaxAlignment ? alignment : 0;
  const int64_t stride = (first + columns + alignment - 1) / alignment * alignment;
  memory = allocate_scratch(ctx, example.dtype(), {rows, stride}, "tuning of gemm");
  view = memory.view.columns(first, columns);
}

GemmInvariance::GemmInvariance(const GemmOperands& example, ExecContext& ctx)
    : ctx_(ctx),
      example_(example),
      x_(example.x, 2 * kInvariantTokens + kProbes, ctx),
      y_(example.y, kInvariantTokens, ctx),
      alone_(example.y, kProbes, ctx),
      comparison_(ctx) {
  fill_operand(x_.memory.view, ctx);
}

GemmOperands GemmInvariance::operands(int64_t first, int64_t tokens) const {
  GemmOperands operands = example_;
  operands.x = x_.view.rows(first, tokens);
  operands.y = y_.view.rows(0, tokens);
  return operands;
}

std::vector<BlasPlan> GemmInvariance::candidates() const {
  constexpr int kProposals = 16;
  const CudaContext::State& cuda = cuda_state(ctx_);
  std::vector<BlasPlan> plans;
  for (int64_t tokens : {16, 128, 512}) {
    for (BlasPlan plan : heuristic_plans(cuda, operands(0, tokens), kProposals)) {
      plan = k_splits(plan) == 1 ? plan : with_k_splits(plan, 1).value_or(plan);
      if (k_splits(plan) == 1 && is_possible(cuda, operands(0, 1), plan) &&
          std::all_of(std::begin(kTokens), std::end(kTokens),
                      [&](int64_t count) { return is_possible(cuda, operands(0, count), plan); })) {
        add_new_plan(plan, plans);
      }
    }
  }
  return plans;
}

TokenwiseBlasPlan GemmInvariance::tokenwise_plan() const {
  return {heuristic_plan(cuda_state(ctx_), operands(0, 1))};
}

// Computes some rows alone, and at several places of calls for more tokens.
bool GemmInvariance::passes(const GemmPlan& plan) {
  const CudaContext::State& cuda = cuda_state(ctx_);
  const auto* const blas = std::get_if<BlasPlan>(&plan);
  if (blas == nullptr) {
    return std::holds_alternative<TokenwiseBlasPlan>(plan) &&
           is_possible(cuda, operands(0, 1), plan);
  }
  if (k_splits(*blas) != 1 || !is_possible(cuda, operands(0, 1), *blas) ||
      !is_possible(cuda, operands(0, kInvariantTokens), *blas)) {
    return false;
  }
  for (int64_t probe = 0; probe < kProbes; ++probe) {
    GemmOperands one = operands(kInvariantTokens + probe, 1);
    one.y = alone_.view.rows(probe, 1);
    if (enqueue_gemm(one, *blas, ctx_) != CUBLAS_STATUS_SUCCESS) {
      return false;
    }
  }
  return std::all_of(std::begin(kTokens), std::end(kTokens),
                     [&](int64_t tokens) { return has_same_bits(*blas, tokens); });
}

bool GemmInvariance::has_same_bits(const BlasPlan& plan, int64_t tokens) {
  for (int64_t probe = 0; probe < kProbes; ++probe) {
    for (int64_t place : {int64_t{0}, tokens / 2, tokens - 1}) {
      const GemmOperands call = operands(kInvariantTokens + probe - place, tokens);
      if (enqueue_gemm(call, plan, ctx_) != CUBLAS_STATUS_SUCCESS) {
        comparison_.take();  // it begins anew with the next plan
        return false;
      }
      comparison_.add(alone_.view.rows(probe, 1), call.y.rows(place, 1));
    }
  }
  return comparison_.take().difference == 0.0f;
}

}  // namespace sparsellm
