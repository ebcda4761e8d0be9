#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/token_buckets.h"
#include "kernels/tune/cuda_meter.cuh"
#include "kernels/tune/tuner.h"
#include "sparse/expand_matmul.h"
#include "sparse/tca_bme/cuda/record_weight.cuh"
#include "sparse/tca_bme/v1/paper_layout.h"

namespace sparsellm::tca_bme {
namespace {

// Rises when a choice of an earlier version of this code may no longer be right.
constexpr int kCodeVersion = 12;

// From here on an expansion may be faster than decoding, up to kMaxDecodedTokens; warpgroups may be
// for any number of tokens that they take.
constexpr int64_t kMinExpandedTokens = 32;
constexpr size_t kMaxWgmmaConfigs = 12;  // the best guesses are among them

using Weights = std::vector<const CudaRecordWeight*>;

// Products of weights with the same key.
class RecordTunable : public Tunable<RecordPlan> {
 public:
  struct Product {
    const Weights& weights;
    Tensor x;  // with values
    Tensor y;  // is overwritten
    Epilogue epilogue;
    bool overlaps_pieces = false;  // whether that is a choice
  };
  RecordTunable(const Product& product, ExecContext& ctx)
      : product_(product), first_(*product.weights.front()), ctx_(ctx) {}

  std::string key() const override {
    const bool fewer_choices = !product_.overlaps_pieces && tokens() >= kMinExpandedTokens;
    return fmt::format("tca_bme matmul {}, {}{}", kCodeVersion,
                       first_.key(product_.y.dtype(), tokens(), ctx_.launches).text(),
                       fewer_choices ? ", not expanded" : "");
  }

  std::vector<RecordPlan> candidates() const override {
    const DType y = product_.y.dtype();
    std::vector<RecordPlan> plans;
    if (tokens() <= kMaxDecodedTokens) {
      add_fitting(first_.configs_for(y, tokens()), SIZE_MAX, plans);
    }
    add_fitting(first_.wgmma_configs_for(y, tokens()), kMaxWgmmaConfigs, plans);
    if (product_.overlaps_pieces && (tokens() >= kMinExpandedTokens || plans.empty())) {
      for (int64_t rows : expand_piece_choices(first_.out(), first_.in(), tokens())) {
        plans.emplace_back(RecordExpansion{.piece_rows = rows});
      }
    }
    if (plans.empty()) {
      plans.push_back(fallback());
    }
    return plans;
  }

  // Weights of the same key differ in how large their records are.
  bool fits_all(const RecordPlan& plan) const override {
    return std::all_of(
        product_.weights.begin(), product_.weights.end(),
        [&](const CudaRecordWeight* weight) { return weight->fits(plan, tokens()); });
  }
  RecordPlan fallback() const override { return first_.rule_plan(product_.y.dtype(), tokens()); }

  Tensor result() const override { return product_.y; }
  void run_reference(const Tensor& expected) override {
    first_.run(first_.single_pieces(), product_.x, expected, product_.epilogue, ctx_);
  }
  void run(const RecordPlan& plan, int64_t turn) override {
    const size_t weight = static_cast<size_t>(turn) % product_.weights.size();
    product_.weights[weight]->run(plan, product_.x, product_.y, product_.epilogue, ctx_);
  }
  int64_t bytes_in_turn() const override {
    int64_t bytes = 0;
    for (const CudaRecordWeight* weight : product_.weights) {
      bytes += weight->bytes();
    }
    return bytes;
  }

  std::string to_text(const RecordPlan& plan) const override { return tca_bme::to_text(plan); }
  std::optional<RecordPlan> plan_from(std::string_view text) const override {
    return tca_bme::plan_from(text, first_.matrix(), tokens());
  }

 private:
  int64_t tokens() const { return product_.x.size(0); }

  // Up to `most` that fit all weights.
  template <class Config>
  void add_fitting(const std::vector<Config>& configs, size_t most,
                   std::vector<RecordPlan>& plans) const {
    for (const Config& config : configs) {
      if (most > 0 && fits_all(config)) {
        plans.emplace_back(config);
        --most;
      }
    }
  }

  Product product_;
  const CudaRecordWeight& first_;
  ExecContext& ctx_;
};

// One tuning of weights with the same key but for the tokens: x and y of the most tokens that it
// needs.
class Tuning {
 public:
  Tuning(const MatmulTuning& what, Weights weights, int64_t tokens, TuneCache& cache,
         ExecContext& ctx)
      : ctx_(ctx),
        cache_(cache),
        weights_(std::move(weights)),
        epilogue_(what.epilogue),
        overlaps_pieces_(first().overlaps_pieces(std::max(what.most_tokens, tokens))),
        meter_(ctx),
        x_(allocate_scratch(ctx, first().dtype(), {tokens, first().in()}, "tuning")),
        y_(allocate_scratch(ctx, what.y, {tokens, first().out()}, "tuning")) {
    fill_operand(x_.view, ctx);
  }

  // Returns whether there was something to measure.
  bool tune_bucket(int64_t tokens) {
    RecordTunable tunable({.weights = weights_,
                           .x = x_.view.rows(0, tokens),
                           .y = y_.view.rows(0, tokens),
                           .epilogue = epilogue_,
                           .overlaps_pieces = overlaps_pieces_},
                          ctx_);
    const Tuned<RecordPlan> tuned = Tuner(meter_, cache_, ctx_).fastest(tunable);
    cuda_state(ctx_).op_states.of<RecordPlans>().set(
        first().key(y_.view.dtype(), tokens, ctx_.launches), tuned.plan);
    return tuned.measured;
  }

 private:
  const CudaRecordWeight& first() const { return *weights_.front(); }

  ExecContext& ctx_;
  TuneCache& cache_;
  Weights weights_;
  Epilogue epilogue_;
  bool overlaps_pieces_;
  CudaMeter meter_;
  OwnedTensor x_;
  OwnedTensor y_;
};

}  // namespace

int64_t CudaRecordWeight::tune(const MatmulTuning& what, TuneCache& cache, ExecContext& ctx) const {
  require(!is_capturing(ctx), "{}: tuned while a graph is captured", kName);
  std::set<int64_t> buckets;
  for (int64_t tokens : what.tokens) {
    buckets.insert(token_bucket(tokens));
  }
  // Batch-invariant products have one configuration.
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
      measured += tuning.tune_bucket(tokens) ? 1 : 0;
    }
  }
  return measured;
}

}  // namespace sparsellm::tca_bme
