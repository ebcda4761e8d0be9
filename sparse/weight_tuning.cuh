#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/base/token_buckets.h"
#include "kernels/tune/cuda_meter.cuh"
#include "kernels/tune/tuner.h"
#include "sparse/product_plan.h"
#include "sparse/tuned_plans.cuh"
#include "sparse/weight_matrix.h"

// How encoded weights on CUDA devices are tuned, whatever their format.
namespace sparsellm {

// A weight of a format that has several plans for a product:
//   - Plan: a std::variant, of Expansion among others; Key: what the choice depends on, with a
//     text() for files;
//   - kTuningVersion rises when a choice of an earlier version of the code may no longer be right;
//     kWithoutOverlap follows a key where expansions that overlap are no choice;
//   - candidates(): the plans that are worth trying, the best guess first, of those that
//     `fits_all`: weights of the same key may differ in which plans they have room for;
//   - run() is matmul() of checked operands by a plan that fits.
template <class Weight>
concept TunableWeight = std::derived_from<Weight, WeightMatrix> &&
    requires(const Weight& weight, const typename Weight::Plan& plan,
             const std::function<bool(const typename Weight::Plan&)>& fits_all,
             const PlannedProduct& product, const Tensor& tensor, const Epilogue& epilogue,
             int64_t tokens, std::string_view text, ExecContext& ctx) {
  { Weight::kTuningVersion } -> std::convertible_to<int>;
  { Weight::kWithoutOverlap } -> std::convertible_to<std::string_view>;
  { weight.key(DType::f16, tokens, Launches::ordinary) } -> std::same_as<typename Weight::Key>;
  { weight.candidates(product, fits_all) } -> std::same_as<std::vector<typename Weight::Plan>>;
  { weight.fits(plan, DType::f16, tokens) } -> std::same_as<bool>;
  { weight.rule_plan(DType::f16, tokens) } -> std::same_as<typename Weight::Plan>;
  { weight.overlaps_pieces(tokens) } -> std::same_as<bool>;
  { weight.text_of(plan) } -> std::same_as<std::string>;
  { weight.plan_from(text, tokens) } -> std::same_as<std::optional<typename Weight::Plan>>;
  weight.run(plan, tensor, tensor, epilogue, ctx);
};

// Products of weights with the same key.
template <TunableWeight Weight>
class WeightTunable : public Tunable<typename Weight::Plan> {
 public:
  using Plan = typename Weight::Plan;
  struct Product {
    const std::vector<const Weight*>& weights;
    Tensor x;  // with values
    Tensor y;  // is overwritten
    Epilogue epilogue;
    bool overlaps_pieces = false;
  };
  WeightTunable(const Product& product, ExecContext& ctx)
      : product_(product), first_(*product.weights.front()), ctx_(ctx) {}

  std::string key() const override {
    const bool fewer_choices = !product_.overlaps_pieces && tokens() >= kMinExpandedTokens;
    return fmt::format("{} matmul {}, {}{}", first_.format(), Weight::kTuningVersion,
                       first_.key(product_.y.dtype(), tokens(), ctx_.launches).text(),
                       fewer_choices ? std::string_view(Weight::kWithoutOverlap) : "");
  }

  std::vector<Plan> candidates() const override {
    return first_.candidates(
        {.y = product_.y.dtype(), .tokens = tokens(), .overlaps_pieces = product_.overlaps_pieces},
        [this](const Plan& plan) { return fits_all(plan); });
  }
  bool fits_all(const Plan& plan) const override {
    const auto* const expansion = std::get_if<Expansion>(&plan);
    if (expansion != nullptr && expansion->overlapped && !product_.overlaps_pieces) {
      return false;  // chosen where the workspace was larger
    }
    return std::all_of(product_.weights.begin(), product_.weights.end(), [&](const Weight* weight) {
      return weight->fits(plan, product_.y.dtype(), tokens());
    });
  }
  Plan fallback() const override { return first_.rule_plan(product_.y.dtype(), tokens()); }

  Tensor result() const override { return product_.y; }
  void run_reference(const Tensor& expected) override {
    first_.run(single_piece_expansion(first_.out(), first_.in()), product_.x, expected,
               product_.epilogue, ctx_);
  }
  void run(const Plan& plan, int64_t turn) override {
    const size_t weight = static_cast<size_t>(turn) % product_.weights.size();
    product_.weights[weight]->run(plan, product_.x, product_.y, product_.epilogue, ctx_);
  }
  int64_t bytes_in_turn() const override {
    int64_t bytes = 0;
    for (const Weight* weight : product_.weights) {
      bytes += weight->bytes();
    }
    return bytes;
  }

  std::string to_text(const Plan& plan) const override { return first_.text_of(plan); }
  std::optional<Plan> plan_from(std::string_view text) const override {
    return first_.plan_from(text, tokens());
  }

 private:
  int64_t tokens() const { return product_.x.size(0); }

  Product product_;
  const Weight& first_;
  ExecContext& ctx_;
};

// One tuning of weights with the same key but for the tokens: x and y of the most tokens that it
// needs.
template <TunableWeight Weight>
class WeightTuning {
 public:
  WeightTuning(const MatmulTuning& what, std::vector<const Weight*> weights, int64_t tokens,
               TuneCache& cache, ExecContext& ctx)
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
    WeightTunable<Weight> tunable({.weights = weights_,
                                   .x = x_.view.rows(0, tokens),
                                   .y = y_.view.rows(0, tokens),
                                   .epilogue = epilogue_,
                                   .overlaps_pieces = overlaps_pieces_},
                                  ctx_);
    const auto tuned = Tuner(meter_, cache_, ctx_).fastest(tunable);
    cuda_state(ctx_).op_states.template of<TunedPlansOf<Weight>>().set(
        first().key(y_.view.dtype(), tokens, ctx_.launches), tuned.plan);
    return tuned.measured;
  }

 private:
  const Weight& first() const { return *weights_.front(); }

  ExecContext& ctx_;
  TuneCache& cache_;
  std::vector<const Weight*> weights_;
  Epilogue epilogue_;
  bool overlaps_pieces_;
  CudaMeter meter_;
  OwnedTensor x_;
  OwnedTensor y_;
};

// WeightMatrix::tune() of `weight`, like which all weights alike have to be.
template <TunableWeight Weight>
int64_t tune_weights(const Weight& weight, const MatmulTuning& what, TuneCache& cache,
                     ExecContext& ctx) {
  require(!is_capturing(ctx), "{}: tuned while a graph is captured", weight.format());
  std::set<int64_t> buckets;
  for (int64_t tokens : what.tokens) {
    buckets.insert(token_bucket(tokens));
  }
  // Batch-invariant products have one configuration.
  if (ctx.sums == Sums::batch_invariant || buckets.empty() || weight.out() == 0 ||
      weight.in() == 0) {
    return 0;
  }
  std::map<typename Weight::Key, std::vector<const Weight*>> kinds;
  for (const WeightMatrix* each : what.alike) {
    const auto* const alike = dynamic_cast<const Weight*>(each);
    require(alike != nullptr, "{}: a weight is not like one in the format {}", weight.format(),
            each->format());
    kinds[alike->key(what.y, 0, ctx.launches)].push_back(alike);
  }
  int64_t measured = 0;
  for (const auto& [key, weights] : kinds) {
    WeightTuning<Weight> tuning(what, weights, *buckets.rbegin(), cache, ctx);
    for (int64_t tokens : buckets) {
      measured += tuning.tune_bucket(tokens) ? 1 : 0;
    }
  }
  return measured;
}

}  // namespace sparsellm
