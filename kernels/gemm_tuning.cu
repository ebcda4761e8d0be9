#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/gemm_candidates.cuh"
#include "kernels/gemm_stream_cuda.h"
#include "kernels/gemm_tuning.cuh"
#include "kernels/tune/measure.cuh"

namespace sparsellm {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Of which a batch-invariant plan is looked for, in their order.
constexpr int kInvariantProposals = 16;

// Tries plans on the same operands.
class Trial {
 public:
  Trial(const GemmOperands& operands, std::span<const Tensor> weights, ExecContext& ctx)
      : ctx_(ctx),
        operands_(operands),
        weights_(weights),
        expected_(allocate_scratch(ctx, operands.y.dtype(),
                                   {operands.y.size(0), operands.y.size(1)}, "tuning of gemm")),
        comparison_(ctx),
        timer_(total_bytes(weights), ctx) {
    GemmOperands expected = operands_;
    expected.y = expected_.view;
    expected.partial_sums = PartialSums::f32;
    check_cublas(enqueue_gemm(expected, heuristic_plan(cuda_state(ctx), expected), ctx));
  }

  // Seconds of one call; nothing if the plan cannot run, is wrong, or is far slower than `best`.
  std::optional<double> measure(const GemmPlan& plan, double best) {
    if (!is_right(plan)) {
      return std::nullopt;
    }
    const auto call = [&] {
      GemmOperands operands = operands_;
      operands.w = weights_[next_weight_++ % weights_.size()];
      check_cublas(enqueue_gemm(operands, plan, ctx_));
    };
    return timer_.median(call, best);
  }

 private:
  static int64_t total_bytes(std::span<const Tensor> weights) {
    int64_t bytes = 0;
    for (const Tensor& w : weights) {
      bytes += w.bytes();
    }
    return bytes;
  }

  bool is_right(const GemmPlan& plan) {
    const Tensor& y = operands_.y;
    const auto element = static_cast<size_t>(size_of(y.dtype()));
    // All ones are NaN in every dtype: what a plan leaves unwritten is found.
    check_cuda(cudaMemset2DAsync(y.raw(), static_cast<size_t>(y.row_stride()) * element, 0xff,
                                 static_cast<size_t>(y.size(1)) * element,
                                 static_cast<size_t>(y.size(0)), cuda_queue(ctx_).stream));
    try {
      if (enqueue_gemm(operands_, plan, ctx_) != CUBLAS_STATUS_SUCCESS) {
        return false;
      }
    } catch (const OutOfMemory&) {
      throw;
    } catch (const DeviceLost&) {
      throw;
    } catch (const Error&) {
      return false;  // a launch that the device or its driver does not take
    }
    comparison_.add(expected_.view, y);
    const Comparison::Largest largest = comparison_.take();
    return static_cast<double>(largest.difference) <=
           rounding_tolerance(y.dtype()) * static_cast<double>(largest.value);
  }

  ExecContext& ctx_;
  GemmOperands operands_;
  std::span<const Tensor> weights_;
  size_t next_weight_ = 0;
  OwnedTensor expected_;
  Comparison comparison_;
  CallTimer timer_;
};

// Rows aligned exactly as those of `example`: a part of wider rows in `memory`.
struct AlignedRows {
  OwnedTensor memory;
  Tensor view;

  AlignedRows(const Tensor& example, int64_t rows, ExecContext& ctx) {
    const int64_t columns = example.size(1);
    const int64_t alignment = row_alignment(example) / size_of(example.dtype());  // in elements
    // A Buffer is aligned to the most; one step off its rows are aligned to one step.
    const int64_t first = row_alignment(example) < kMostAlignment ? alignment : 0;
    const int64_t stride = (first + columns + alignment - 1) / alignment * alignment;
    memory = allocate_scratch(ctx, example.dtype(), {rows, stride}, "tuning of gemm");
    view = memory.view.columns(first, columns);
  }
};

// Looks for a plan that gives a row the same bits in any batch.
class InvarianceTest {
 public:
  InvarianceTest(const GemmOperands& example, ExecContext& ctx)
      : ctx_(ctx),
        example_(example),
        x_(example.x, 2 * kMostTokens + kProbes, ctx),
        y_(example.y, kMostTokens, ctx),
        alone_(example.y, kProbes, ctx),
        comparison_(ctx) {
    fill_operand(x_.memory.view, ctx);
  }

  // Operands with random x.
  GemmOperands operands(int64_t first, int64_t tokens) const {
    GemmOperands operands = example_;
    operands.x = x_.view.rows(first, tokens);
    operands.y = y_.view.rows(0, tokens);
    return operands;
  }

  // Plans that never split K and can run for every number of tokens of the test.
  std::vector<GemmPlan> candidates() const {
    const CudaContext::State& cuda = cuda_state(ctx_);
    std::vector<GemmPlan> plans;
    for (int64_t tokens : {16, 128, 512}) {
      for (GemmPlan plan : heuristic_plans(cuda, operands(0, tokens), kInvariantProposals)) {
        plan = k_splits(plan) == 1 ? plan : with_k_splits(plan, 1).value_or(plan);
        if (k_splits(plan) == 1 && is_possible(cuda, operands(0, 1), plan) &&
            std::all_of(std::begin(kTokens), std::end(kTokens), [&](int64_t count) {
              return is_possible(cuda, operands(0, count), plan);
            })) {
          add_new_plan(plan, plans);
        }
      }
    }
    return plans;
  }

  // Computes some rows alone, and at several places of calls for more tokens.
  bool passes(const GemmPlan& plan) {
    for (int64_t probe = 0; probe < kProbes; ++probe) {
      GemmOperands one = operands(kMostTokens + probe, 1);
      one.y = alone_.view.rows(probe, 1);
      if (enqueue_gemm(one, plan, ctx_) != CUBLAS_STATUS_SUCCESS) {
        return false;
      }
    }
    return std::all_of(std::begin(kTokens), std::end(kTokens),
                       [&](int64_t tokens) { return same_bits(plan, tokens); });
  }

 private:
  static constexpr int64_t kTokens[] = {2, 3, 8, 16, 17, 64, 100, 128, 200, 1000, kInvariantTokens};
  static constexpr int64_t kMostTokens = kInvariantTokens;
  static constexpr int64_t kProbes = 4;

  bool same_bits(const GemmPlan& plan, int64_t tokens) {
    for (int64_t probe = 0; probe < kProbes; ++probe) {
      for (int64_t place : {int64_t{0}, tokens / 2, tokens - 1}) {
        const GemmOperands call = operands(kMostTokens + probe - place, tokens);
        if (enqueue_gemm(call, plan, ctx_) != CUBLAS_STATUS_SUCCESS) {
          return false;
        }
        comparison_.add(alone_.view.rows(probe, 1), call.y.rows(place, 1));
      }
    }
    return comparison_.take().difference == 0.0f;
  }

  ExecContext& ctx_;
  GemmOperands example_;
  AlignedRows x_;
  AlignedRows y_;
  AlignedRows alone_;
  Comparison comparison_;
};

}  // namespace

MeasuredGemm measure_fastest_plan(const GemmOperands& operands, std::span<const Tensor> weights,
                                  ExecContext& ctx) {
  const CudaContext::State& cuda = cuda_state(ctx);
  std::vector<GemmPlan> plans = blas_candidates(cuda, operands);
  for (const StreamMemory memory : {StreamMemory::half, StreamMemory::whole}) {
    GemmPlan plan;
    plan.stream = memory;
    if (is_possible(cuda, operands, plan)) {
      plans.push_back(plan);
    }
  }
  return measure_fastest_of(plans, operands, weights, ctx);
}

MeasuredGemm measure_fastest_of(std::span<const GemmPlan> plans, const GemmOperands& operands,
                                std::span<const Tensor> weights, ExecContext& ctx) {
  Trial trial(operands, weights, ctx);
  MeasuredGemm best{.plan = heuristic_plan(cuda_state(ctx), operands)};
  double best_seconds = kInfinity;
  for (const GemmPlan& plan : plans) {
    const std::optional<double> seconds = trial.measure(plan, best_seconds);
    if (seconds && *seconds < best_seconds) {
      best_seconds = *seconds;
      best = {.plan = plan, .seconds = *seconds};
    }
  }
  return best;
}

MeasuredGemm measure_invariant_plan(const GemmOperands& example, std::span<const Tensor> weights,
                                    ExecContext& ctx) {
  constexpr int64_t kMeasuredTokens = 16;
  InvarianceTest test(example, ctx);
  Trial trial(test.operands(0, kMeasuredTokens), weights, ctx);
  for (const GemmPlan& plan : test.candidates()) {
    const std::optional<double> seconds = trial.measure(plan, kInfinity);
    if (seconds && test.passes(plan)) {
      return {.plan = plan, .seconds = *seconds};
    }
  }
  // A row that is always computed alone has the same bits too.
  GemmPlan alone = heuristic_plan(cuda_state(ctx), test.operands(0, 1));
  alone.calls = TokenCalls::each;
  return {.plan = alone, .seconds = trial.measure(alone, kInfinity).value_or(0.0)};
}

bool is_invariant(const GemmPlan& plan, const GemmOperands& example, ExecContext& ctx) {
  InvarianceTest test(example, ctx);
  const CudaContext::State& cuda = cuda_state(ctx);
  if (plan.stream) {
    return false;
  }
  if (plan.calls == TokenCalls::each) {
    return is_possible(cuda, test.operands(0, 1), plan);
  }
  return k_splits(plan) == 1 && is_possible(cuda, test.operands(0, 1), plan) &&
         is_possible(cuda, test.operands(0, kInvariantTokens), plan) && test.passes(plan);
}

}  // namespace sparsellm
