#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/token_buckets.h"
#include "kernels/gemm_candidates.cuh"
#include "kernels/gemm_device.h"
#include "kernels/gemm_invariance.cuh"
#include "kernels/gemm_plans.cuh"
#include "kernels/gemm_tuning.cuh"
#include "kernels/tune/cuda_meter.cuh"

namespace sparsellm {
namespace {

// Rises when a choice of an earlier version of this code may no longer be right.
constexpr int kCodeVersion = 11;

std::string gemm_key(const GemmKey& key, std::string_view what) {
  return fmt::format("dense gemm {}, {}, {}", kCodeVersion, key.text(), what);
}

// Products of these operands, by the plans of cuBLASLt and by our own kernels.
class GemmTunable : public Tunable<GemmPlan> {
 public:
  GemmTunable(const GemmOperands& operands, std::span<const Tensor> weights, ExecContext& ctx)
      : operands_(operands), weights_(weights), ctx_(ctx) {}

  std::string key() const override {
    return gemm_key(GemmKey::any_stride(operands_, operands_.x.size(0), ctx_.launches), "fastest");
  }
  std::vector<GemmPlan> candidates() const override {
    std::vector<GemmPlan> plans = blas_plans();
    for (const StreamMemory memory : {StreamMemory::half, StreamMemory::whole}) {
      const StreamPlan plan{memory};
      if (is_possible(cuda_state(ctx_), operands_, plan)) {
        plans.emplace_back(plan);
      }
    }
    return plans;
  }
  bool fits_all(const GemmPlan& plan) const override {
    return !std::holds_alternative<TokenwiseBlasPlan>(plan) &&
           is_possible(cuda_state(ctx_), operands_, plan);
  }
  GemmPlan fallback() const override { return heuristic_plan(cuda_state(ctx_), operands_); }

  Tensor result() const override { return operands_.y; }
  void run_reference(const Tensor& expected) override {
    GemmOperands operands = operands_;
    operands.y = expected;
    operands.partial_sums = PartialSums::f32;
    check_cublas(enqueue_gemm(operands, heuristic_plan(cuda_state(ctx_), operands), ctx_));
  }
  void run(const GemmPlan& plan, int64_t turn) override {
    GemmOperands operands = operands_;
    operands.w = weights_[static_cast<size_t>(turn) % weights_.size()];
    check_cublas(enqueue_gemm(operands, plan, ctx_));
  }
  int64_t bytes_in_turn() const override {
    int64_t bytes = 0;
    for (const Tensor& w : weights_) {
      bytes += w.bytes();
    }
    return bytes;
  }

  std::string to_text(const GemmPlan& plan) const override { return sparsellm::to_text(plan); }
  std::optional<GemmPlan> plan_from(std::string_view text) const override {
    return gemm_plan_from(text);
  }

 protected:
  std::vector<GemmPlan> blas_plans() const {
    const std::vector<BlasPlan> plans = blas_candidates(cuda_state(ctx_), operands_);
    return {plans.begin(), plans.end()};
  }
  const GemmOperands& operands() const { return operands_; }
  Launches launches() const { return ctx_.launches; }

 private:
  GemmOperands operands_;
  std::span<const Tensor> weights_;
  ExecContext& ctx_;
};

// The same by cuBLASLt alone.
class BlasTunable : public GemmTunable {
 public:
  using GemmTunable::GemmTunable;

  std::string key() const override {
    const bool reduced = operands().partial_sums == PartialSums::any;
    return gemm_key(GemmKey::exact(operands(), launches()),
                    reduced ? "cuBLASLt alone, any partial sums" : "cuBLASLt alone");
  }
  std::vector<GemmPlan> candidates() const override { return blas_plans(); }
  bool fits_all(const GemmPlan& plan) const override {
    return std::holds_alternative<BlasPlan>(plan) && GemmTunable::fits_all(plan);
  }
};

// By plans for any number of tokens, of which the first that passes the test is wanted.
class InvariantTunable : public GemmTunable {
 public:
  InvariantTunable(const GemmOperands& example, std::span<const Tensor> weights,
                   GemmInvariance& test, ExecContext& ctx)
      : GemmTunable(test.operands(0, kMeasuredTokens), weights, ctx),
        key_(gemm_key(GemmKey::batch_invariant(example), "batch invariant")),
        test_(test) {}

  std::string key() const override { return key_; }
  std::vector<GemmPlan> candidates() const override {
    const std::vector<BlasPlan> proposals = test_.candidates();
    std::vector<GemmPlan> plans(proposals.begin(), proposals.end());
    plans.emplace_back(test_.tokenwise_plan());
    return plans;
  }
  bool fits_all(const GemmPlan& plan) const override { return test_.passes(plan); }
  GemmPlan fallback() const override { return test_.tokenwise_plan(); }

 private:
  static constexpr int64_t kMeasuredTokens = 16;

  std::string key_;
  GemmInvariance& test_;
};

// One tuning: x and y of the most tokens that it needs.
class Tuning {
 public:
  Tuning(const GemmTuning& what, int64_t tokens, TuneCache& cache, ExecContext& ctx)
      : ctx_(ctx),
        cache_(cache),
        weights_(what.weights),
        plans_(cuda_state(ctx).op_states.of<GemmPlans>()),
        meter_(ctx) {
    const Tensor& w = what.weights.front();
    const GemmSizes sizes = gemm_sizes(w, what.order);
    x_ = allocate_scratch(ctx, w.dtype(), {tokens, sizes.in}, "tuning of gemm");
    y_ = allocate_scratch(ctx, what.y, {tokens, sizes.out}, "tuning of gemm");
    operands_ = {.x = x_.view,
                 .w = w,
                 .order = what.order,
                 .bias = what.epilogue.bias,
                 .y = y_.view,
                 .relu = what.epilogue.activation.kind == Activation::Kind::relu};
    check_gemm_operands(operands_);
    fill_operand(x_.view, ctx);
  }

  // Both return whether there was something to measure.
  bool tune_bucket(int64_t tokens) {
    const GemmOperands operands = operands_.tokens(0, tokens);
    GemmTunable tunable(operands, weights_, ctx_);
    const Tuned<GemmPlan> tuned = Tuner(meter_, cache_, ctx_).fastest(tunable);
    plans_.set_tuned(operands, ctx_.launches, tuned.plan);
    return tuned.measured;
  }

  bool tune_invariant() {
    const Tuned<GemmPlan> tuned = tuned_invariant_plan(operands_, weights_, cache_, ctx_);
    plans_.set_invariant(operands_, tuned.plan);
    return tuned.measured;
  }

 private:
  ExecContext& ctx_;
  TuneCache& cache_;
  std::span<const Tensor> weights_;
  GemmPlans& plans_;
  CudaMeter meter_;
  OwnedTensor x_;
  OwnedTensor y_;
  GemmOperands operands_;
};

}  // namespace

BlasPlan tuned_blas_plan(const GemmOperands& operands, std::span<const Tensor> weights,
                         TuneCache& cache, ExecContext& ctx) {
  CudaMeter meter(ctx);
  BlasTunable tunable(operands, weights, ctx);
  return std::get<BlasPlan>(Tuner(meter, cache, ctx).fastest(tunable).plan);
}

Tuned<GemmPlan> tuned_invariant_plan(const GemmOperands& example, std::span<const Tensor> weights,
                                     TuneCache& cache, ExecContext& ctx) {
  CudaMeter meter(ctx);
  GemmInvariance test(example, ctx);
  InvariantTunable tunable(example, weights, test, ctx);
  return Tuner(meter, cache, ctx).first_right(tunable);
}

int64_t tune_gemm_cuda(const GemmTuning& what, TuneCache& cache, ExecContext& ctx) {
  require(!is_capturing(ctx), "tune_gemm: called while a graph is captured");
  for (const Tensor& w : what.weights) {
    require(row_alignment(w) == row_alignment(what.weights.front()),
            "tune_gemm: the rows of two weights are aligned to {} and {} bytes",
            row_alignment(what.weights.front()), row_alignment(w));
  }
  if (what.weights.front().element_count() == 0) {
    return 0;
  }
  if (ctx.sums == Sums::batch_invariant) {
    return Tuning(what, 1, cache, ctx).tune_invariant() ? 1 : 0;
  }
  std::set<int64_t> buckets;
  for (int64_t tokens : what.tokens) {
    buckets.insert(token_bucket(tokens));
  }
  if (buckets.empty()) {
    return 0;
  }
  Tuning tuning(what, *buckets.rbegin(), cache, ctx);
  int64_t measured = 0;
  for (int64_t tokens : buckets) {
    measured += tuning.tune_bucket(tokens) ? 1 : 0;
  }
  return measured;
}

}  // namespace sparsellm
