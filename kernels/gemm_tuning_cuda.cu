#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "kernels/base/buffer.h"
#include "kernels/base/token_buckets.h"
#include "kernels/base/tune_cache.h"
#include "kernels/gemm_candidates.cuh"
#include "kernels/gemm_device.h"
#include "kernels/gemm_plans.cuh"
#include "kernels/gemm_stream_cuda.h"
#include "kernels/gemm_tuning.cuh"
#include "kernels/tune/measure.cuh"

namespace sparsellm {
namespace {

// Rises when a choice of an earlier version of this code may no longer be right.
constexpr int kCodeVersion = 9;

constexpr std::pair<TokenCalls, std::string_view> kTokenCalls[] = {
    {TokenCalls::one, "one"},
    {TokenCalls::each, "each"},
};

constexpr std::pair<StreamMemory, std::string_view> kStreams[] = {
    {StreamMemory::half, "half"},
    {StreamMemory::whole, "whole"},
};
constexpr std::string_view kStream = "stream";

template <class Value, size_t kCount>
std::string_view name_in(const std::pair<Value, std::string_view> (&names)[kCount], Value value) {
  for (const auto& [candidate, name] : names) {
    if (candidate == value) {
      return name;
    }
  }
  return "?";
}

template <class Value, size_t kCount>
bool find_in(const std::pair<Value, std::string_view> (&names)[kCount], std::string_view text,
             Value& value) {
  for (const auto& [candidate, name] : names) {
    if (name == text) {
      value = candidate;
      return true;
    }
  }
  return false;
}

// "<calls> <four words of the algorithm in hex> <microseconds>" or "stream <memory> <microseconds>"
std::string to_text(const MeasuredGemm& gemm) {
  if (gemm.plan.stream) {
    return fmt::format("{} {} {:.2f}", kStream, name_in(kStreams, *gemm.plan.stream),
                       gemm.seconds * 1e6);
  }
  std::string text = fmt::format("{} ", name_in(kTokenCalls, gemm.plan.calls));
  for (uint64_t word : gemm.plan.algorithm.data) {
    text += fmt::format("{:016x}", word);
  }
  return text + fmt::format(" {:.2f}", gemm.seconds * 1e6);
}

// Nothing if the text is not of this form.
std::optional<GemmPlan> plan_from(const std::string& text) {
  std::istringstream words(text);
  std::string calls;
  std::string hex;
  words >> calls >> hex;
  GemmPlan plan;
  if (calls == kStream) {
    StreamMemory memory{};
    if (!find_in(kStreams, hex, memory)) {
      return std::nullopt;
    }
    plan.stream = memory;
    return plan;
  }
  constexpr size_t kDigits = 16;  // of a word
  if (!words || !find_in(kTokenCalls, calls, plan.calls) ||
      hex.size() != kDigits * std::size(plan.algorithm.data) ||
      hex.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return std::nullopt;
  }
  for (size_t i = 0; i < std::size(plan.algorithm.data); ++i) {
    plan.algorithm.data[i] = std::stoull(hex.substr(i * kDigits, kDigits), nullptr, 16);
  }
  return plan;
}

std::string library_and_device(const CudaContext::State& cuda) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, cuda.device.index));
  return fmt::format("cuBLASLt {}, {}", cublasLtGetVersion(), properties.name);
}

std::string cache_key(const GemmKey& key, std::string_view what, const std::string& place) {
  return fmt::format("dense gemm {}, {}, {}, {}", kCodeVersion, key.text(), what, place);
}

std::optional<GemmPlan> find_plan(const TuneCache& cache, const std::string& key) {
  const std::optional<std::string> text = cache.find(key);
  return text ? plan_from(*text) : std::nullopt;
}

void remember(const MeasuredGemm& measured, const std::string& key, TuneCache& cache) {
  if (measured.seconds > 0.0) {
    cache.put(key, to_text(measured));
  }
}

// One tuning: x and y of the most tokens that it needs.
class Tuning {
 public:
  Tuning(const GemmTuning& what, int64_t tokens, TuneCache& cache, ExecContext& ctx)
      : ctx_(ctx),
        cache_(cache),
        weights_(what.weights),
        plans_(cuda_state(ctx).op_states.of<GemmPlans>()),
        place_(library_and_device(cuda_state(ctx))) {
    const Tensor& w = what.weights.front();
    x_ = allocate_scratch(ctx, w.dtype(), {tokens, w.size(1)}, "tuning of gemm");
    y_ = allocate_scratch(ctx, what.y, {tokens, w.size(0)}, "tuning of gemm");
    operands_ = {.x = x_.view,
                 .w = w,
                 .bias = what.epilogue.bias,
                 .y = y_.view,
                 .relu = what.epilogue.activation.kind == Activation::Kind::relu};
    check_gemm_operands(operands_);
    fill_operand(x_.view, ctx);
  }

  // Both return whether there was something to measure.
  bool tune_bucket(int64_t tokens) {
    const GemmOperands operands = operands_.tokens(0, tokens);
    const std::string key = cache_key(GemmKey::any_stride(operands, tokens), "fastest", place_);
    if (const std::optional<GemmPlan> known = find_plan(cache_, key);
        known && known->calls == TokenCalls::one &&
        is_possible(cuda_state(ctx_), operands, *known)) {
      plans_.set_tuned(operands, *known);
      return false;
    }
    const MeasuredGemm measured = measure_fastest_plan(operands, weights_, ctx_);
    plans_.set_tuned(operands, measured.plan);
    remember(measured, key, cache_);
    return true;
  }

  bool tune_invariant() {
    const std::string key = cache_key(GemmKey::any_stride(operands_, 0), "batch invariant", place_);
    if (const std::optional<GemmPlan> known = find_plan(cache_, key);
        known && is_invariant(*known, operands_, ctx_)) {
      plans_.set_invariant(operands_, *known);
      return false;
    }
    const MeasuredGemm measured = measure_invariant_plan(operands_, weights_, ctx_);
    plans_.set_invariant(operands_, measured.plan);
    remember(measured, key, cache_);
    return true;
  }

 private:
  ExecContext& ctx_;
  TuneCache& cache_;
  std::span<const Tensor> weights_;
  GemmPlans& plans_;
  std::string place_;
  OwnedTensor x_;
  OwnedTensor y_;
  GemmOperands operands_;
};

}  // namespace

GemmPlan tuned_blas_plan(const GemmOperands& operands, std::span<const Tensor> weights,
                         TuneCache& cache, ExecContext& ctx) {
  const CudaContext::State& cuda = cuda_state(ctx);
  const bool reduced = operands.partial_sums == PartialSums::any;
  const std::string key = cache_key(GemmKey::exact(operands),
                                    reduced ? "cuBLASLt alone, any partial sums" : "cuBLASLt alone",
                                    library_and_device(cuda));
  if (const std::optional<GemmPlan> known = find_plan(cache, key);
      known && !known->stream && known->calls == TokenCalls::one &&
      is_possible(cuda, operands, *known)) {
    return *known;
  }
  const MeasuredGemm measured =
      measure_fastest_of(blas_candidates(cuda, operands), operands, weights, ctx);
  remember(measured, key, cache);
  return measured.plan;
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
