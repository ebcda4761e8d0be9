#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <variant>
#include <vector>

#include "kernels/base/token_buckets.h"
#include "kernels/gemm.h"
#include "kernels/tune/measure.cuh"
#include "sparse/expand_matmul.h"
#include "sparse/tca_bme/cuda/record_weight.cuh"
#include "sparse/tca_bme/v1/paper_layout.h"

namespace sparsellm::tca_bme {
namespace {

// Rises when a choice of an earlier version of this code may no longer be right.
constexpr int kCodeVersion = 9;

// Between these numbers of tokens either way may be the faster one; warpgroups may be for any of
// theirs.
constexpr int64_t kLeastExpandedTokens = 32;
constexpr size_t kMostWgmmaConfigs = 12;  // the best guesses are among them
// While plans are measured one after the other the clocks fall by more than the best of them
// differ: those are measured again, by turns.
constexpr size_t kFinalists = 4;
constexpr int kFinalTurns = 3;

using Weights = std::vector<const CudaRecordWeight*>;

std::string place_of(const CudaContext::State& cuda) {
  cudaDeviceProp properties{};
  int runtime = 0;
  check_cuda(cudaGetDeviceProperties(&properties, cuda.device.index));
  check_cuda(cudaRuntimeGetVersion(&runtime));
  return fmt::format("CUDA {}, {}", runtime, properties.name);
}

int64_t bytes_of(const Weights& weights) {
  int64_t bytes = 0;
  for (const CudaRecordWeight* weight : weights) {
    bytes += weight->bytes();
  }
  return bytes;
}

// One tuning of weights with the same key but for the tokens: x and y of the most tokens that it
// needs.
class Tuning {
 public:
  Tuning(const MatmulTuning& what, Weights weights, int64_t tokens, TuneCache& cache,
         ExecContext& ctx)
      : ctx_(ctx),
        cache_(cache),
        weights_(std::move(weights)),
        first_(*weights_.front()),
        epilogue_(what.epilogue),
        y_dtype_(what.y),
        overlaps_pieces_(first_.overlaps_pieces(std::max(what.most_tokens, tokens))),
        place_(place_of(cuda_state(ctx))),
        x_(allocate_scratch(ctx, first_.dtype(), {tokens, first_.in()}, "tuning")),
        y_(allocate_scratch(ctx, what.y, {tokens, first_.out()}, "tuning")),
        expected_(allocate_scratch(ctx, what.y, {tokens, first_.out()}, "tuning")),
        comparison_(ctx),
        timer_(bytes_of(weights_), ctx) {
    fill_operand(x_.view, ctx);
  }

  // Returns how many choices it measured.
  int64_t tune_bucket(int64_t tokens) {
    const RecordKey key = first_.key(y_dtype_, tokens, ctx_.launches);
    const bool fewer_choices = !overlaps_pieces_ && tokens >= kLeastExpandedTokens;
    const std::string text = fmt::format("tca_bme matmul {}, {}{}, {}", kCodeVersion, key.text(),
                                         fewer_choices ? ", not expanded" : "", place_);
    const std::optional<std::string> known = cache_.find(text);
    std::optional<RecordPlan> plan =
        known ? plan_from(*known, first_.matrix(), tokens) : std::nullopt;
    if (plan && !fits_all(*plan, tokens)) {
      plan.reset();  // it was found for other weights
    }
    const int64_t measured = plan ? 0 : 1;
    if (!plan) {
      plan = measure(tokens);
      cache_.put(text, to_text(*plan));
    }
    cuda_state(ctx_).op_states.of<RecordPlans>().set(key, *plan);
    return measured;
  }

 private:
  static constexpr double kAnyTime = std::numeric_limits<double>::infinity();

  struct TimedPlan {
    double seconds;
    RecordPlan plan;
  };

  RecordPlan measure(int64_t tokens) {
    const Tensor x = x_.view.rows(0, tokens);
    first_.run(first_.single_pieces(), x, expected_.view.rows(0, tokens), epilogue_, ctx_);
    std::vector<TimedPlan> timed;
    double best = kAnyTime;
    for (const RecordPlan& plan : candidates(tokens)) {
      if (const std::optional<double> seconds = try_plan(plan, tokens, best)) {
        best = std::min(best, *seconds);
        timed.push_back({*seconds, plan});
      }
    }
    return timed.empty() ? first_.rule_plan(y_dtype_, tokens) : fastest(std::move(timed), tokens);
  }

  // Weights of the same key differ in how large their records are.
  bool fits_all(const RecordPlan& plan, int64_t tokens) const {
    return std::all_of(weights_.begin(), weights_.end(),
                       [&](const CudaRecordWeight* weight) { return weight->fits(plan, tokens); });
  }

  RecordPlan fastest(std::vector<TimedPlan> timed, int64_t tokens) {
    const auto faster = [](const TimedPlan& a, const TimedPlan& b) {
      return a.seconds < b.seconds;
    };
    std::stable_sort(timed.begin(), timed.end(), faster);
    timed.resize(std::min(timed.size(), kFinalists));
    for (int turn = 0; turn < kFinalTurns && timed.size() > 1; ++turn) {
      for (TimedPlan& each : timed) {
        const double seconds = *time(each.plan, tokens, kAnyTime);
        each.seconds = turn == 0 ? seconds : each.seconds + seconds;
      }
    }
    return std::min_element(timed.begin(), timed.end(), faster)->plan;
  }

  std::vector<RecordPlan> candidates(int64_t tokens) const {
    std::vector<RecordPlan> plans;
    if (tokens <= kMostDecodedTokens) {
      std::vector<RecordMatmulConfig> configs = first_.configs_for(y_dtype_, tokens);
      std::erase_if(configs,
                    [&](const RecordMatmulConfig& config) { return !fits_all(config, tokens); });
      plans.insert(plans.end(), configs.begin(), configs.end());
    }
    std::vector<RecordWgmmaConfig> tiles = first_.wgmma_configs_for(y_dtype_, tokens);
    std::erase_if(tiles,
                  [&](const RecordWgmmaConfig& config) { return !fits_all(config, tokens); });
    tiles.resize(std::min(tiles.size(), kMostWgmmaConfigs));
    plans.insert(plans.end(), tiles.begin(), tiles.end());
    if (overlaps_pieces_ && (tokens >= kLeastExpandedTokens || plans.empty())) {
      for (int64_t rows : expand_piece_choices(first_.out(), first_.in(), tokens)) {
        plans.emplace_back(RecordExpansion{.piece_rows = rows});
      }
    }
    return plans;
  }

  // Seconds; nothing if the plan is not possible, wrong, or far slower than `best`.
  std::optional<double> try_plan(const RecordPlan& plan, int64_t tokens, double best) {
    const Tensor x = x_.view.rows(0, tokens);
    const Tensor y = y_.view.rows(0, tokens);
    // All ones are NaN in every dtype: what a plan leaves unwritten is found.
    check_cuda(
        cudaMemsetAsync(y.raw(), 0xff, static_cast<size_t>(y.bytes()), cuda_queue(ctx_).stream));
    try {
      first_.run(plan, x, y, epilogue_, ctx_);
    } catch (const OutOfMemory&) {
      throw;
    } catch (const DeviceLost&) {
      throw;
    } catch (const Error&) {
      return std::nullopt;  // a launch that the device does not take
    }
    comparison_.add(expected_.view.rows(0, tokens), y);
    const Comparison::Largest largest = comparison_.take();
    if (!(static_cast<double>(largest.difference) <=
          rounding_tolerance(y_dtype_) * static_cast<double>(largest.value))) {
      return std::nullopt;
    }
    return time(plan, tokens, best);
  }

  std::optional<double> time(const RecordPlan& plan, int64_t tokens, double best) {
    const Tensor x = x_.view.rows(0, tokens);
    const Tensor y = y_.view.rows(0, tokens);
    return timer_.median(
        [&] { weights_[next_weight_++ % weights_.size()]->run(plan, x, y, epilogue_, ctx_); },
        best);
  }

  ExecContext& ctx_;
  TuneCache& cache_;
  Weights weights_;
  const CudaRecordWeight& first_;
  Epilogue epilogue_;
  DType y_dtype_;
  bool overlaps_pieces_;
  std::string place_;
  OwnedTensor x_;
  OwnedTensor y_;
  OwnedTensor expected_;
  Comparison comparison_;
  CallTimer timer_;
  size_t next_weight_ = 0;
};

}  // namespace

int64_t CudaRecordWeight::tune(const MatmulTuning& what, TuneCache& cache, ExecContext& ctx) const {
  require(!is_capturing(ctx), "{}: tuned while a graph is captured", kName);
  std::set<int64_t> buckets;
  for (int64_t tokens : what.tokens) {
    buckets.insert(token_bucket(tokens));
  }
  // What is batch invariant has one configuration.
  if (ctx.sums == Sums::batch_invariant || buckets.empty() || out() == 0 || in() == 0) {
    return 0;
  }
  std::map<RecordKey, Weights> kinds;
  for (const WeightMatrix* weight : what.alike) {
    const auto* const records = dynamic_cast<const CudaRecordWeight*>(weight);
    require(records != nullptr, "{}: a weight is not like one in the format {}", kName,
            weight->format());
    kinds[records->key(what.y, 0, ctx.launches)].push_back(records);
  }
  int64_t measured = 0;
  for (const auto& [key, weights] : kinds) {
    Tuning tuning(what, weights, *buckets.rbegin(), cache, ctx);
    for (int64_t tokens : buckets) {
      measured += tuning.tune_bucket(tokens);
    }
  }
  return measured;
}

}  // namespace sparsellm::tca_bme
