#include "kernels/base/token_buckets.h"
#include "kernels/gemm_plans.cuh"
#include "kernels/gemm_tuning.cuh"

namespace sparsellm {

GemmKey GemmKey::any_stride(const GemmOperands& operands, int64_t tokens, Launches launches) {
  return {.out = operands.out(),
          .in = operands.in(),
          .order = operands.order,
          .tokens = tokens,
          .x = operands.x.dtype(),
          .y = operands.y.dtype(),
          .has_bias = !operands.bias.empty(),
          .relu = operands.relu,
          .w_alignment = static_cast<int16_t>(row_alignment(operands.w)),
          .x_alignment = static_cast<int16_t>(row_alignment(operands.x)),
          .y_alignment = static_cast<int16_t>(row_alignment(operands.y)),
          .launches = launches};
}

GemmKey GemmKey::batch_invariant(const GemmOperands& operands) {
  return any_stride(operands, 0, Launches::overlapping);
}

GemmKey GemmKey::exact(const GemmOperands& operands, Launches launches) {
  GemmKey key = any_stride(operands, operands.x.size(0), launches);
  key.w_stride = operands.w.row_stride();
  key.x_stride = operands.x.row_stride();
  key.y_stride = operands.y.row_stride();
  return key;
}

std::string GemmKey::text() const {
  std::string text = fmt::format("{} x {}, {} to {}", out, in, name_of(x), name_of(y));
  if (order == WeightOrder::in_out) {
    text += ", transposed";
  }
  if (has_bias) {
    text += ", bias";
  }
  if (relu) {
    text += ", relu";
  }
  text += fmt::format(", aligned {} {} {}", w_alignment, x_alignment, y_alignment);
  if (tokens > 0) {
    text += fmt::format(", {} tokens", tokens);
  }
  if (launches == Launches::ordinary) {
    text += ", ordinary launches";
  }
  return text;
}

size_t GemmPlans::Hash::operator()(const GemmKey& key) const {
  uint64_t hash = 0;
  const auto mix = [&hash](int64_t value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  };
  mix(key.out);
  mix(key.in);
  mix(key.tokens);
  mix(key.w_stride);
  mix(key.x_stride);
  mix(key.y_stride);
  const auto byte = [](auto value, int place) { return static_cast<int64_t>(value) << 8 * place; };
  const int flags = (key.has_bias ? 1 : 0) + (key.relu ? 2 : 0) +
                    (key.launches == Launches::overlapping ? 4 : 0) +
                    (key.order == WeightOrder::in_out ? 8 : 0);
  mix(byte(key.x, 0) | byte(key.y, 1) | byte(flags, 2));
  mix(byte(key.w_alignment, 0) | byte(key.x_alignment, 2) | byte(key.y_alignment, 4));
  return hash;
}

GemmPlan GemmPlans::plan_for(const GemmOperands& operands, ExecContext& ctx) {
  if (ctx.sums == Sums::batch_invariant) {
    const auto found = invariant_.find(GemmKey::batch_invariant(operands));
    if (found != invariant_.end()) {
      return found->second;
    }
    require(!is_capturing(ctx),
            "gemm: a graph is captured before a batch-invariant algorithm was found for {}",
            GemmKey::batch_invariant(operands).text());
    TuneCache cache;  // of this call alone
    const GemmPlan plan = tuned_invariant_plan(operands, {&operands.w, 1}, cache, ctx).plan;
    set_invariant(operands, plan);
    return plan;
  }
  const GemmKey key = GemmKey::exact(operands, ctx.launches);
  const auto found = used_.find(key);
  if (found != used_.end()) {
    return found->second;
  }
  constexpr size_t kMaxUsed = 4096;  // prompts come in many lengths
  if (used_.size() == kMaxUsed) {
    used_.clear();
  }
  const GemmPlan plan = fastest_plan(operands, ctx);
  used_.emplace(key, plan);
  return plan;
}

GemmPlan GemmPlans::fastest_plan(const GemmOperands& operands, const ExecContext& ctx) const {
  const CudaContext::State& cuda = cuda_state(ctx);
  const int64_t bucket = token_bucket(operands.x.size(0));
  const auto tuned = tuned_.find(GemmKey::any_stride(operands, bucket, ctx.launches));
  return tuned != tuned_.end() && is_possible(cuda, operands, tuned->second)
             ? tuned->second
             : heuristic_plan(cuda, operands);
}

void GemmPlans::set_tuned(const GemmOperands& operands, Launches launches, const GemmPlan& plan) {
  const int64_t bucket = token_bucket(operands.x.size(0));
  tuned_.insert_or_assign(GemmKey::any_stride(operands, bucket, launches), plan);
  used_.clear();  // some are of this bucket; all are found again quickly
}

void GemmPlans::set_invariant(const GemmOperands& operands, const GemmPlan& plan) {
  invariant_.insert_or_assign(GemmKey::batch_invariant(operands), plan);
}

}  // namespace sparsellm
