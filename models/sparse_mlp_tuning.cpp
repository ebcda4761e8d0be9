#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "kernels/base/cuda_context.h"
#include "kernels/base/token_buckets.h"
#include "kernels/fill_random.h"
#include "models/activation_sparsity.h"
#include "models/sparse_mlp.h"
#include "sparse/activation/vote_histogram.h"

// SparseMlp::tune().
namespace sparsellm {
namespace {

// Rises when times of an earlier version of the code may no longer be right.
constexpr int kCutOffVersion = 2;

constexpr double kPerSecond = 1e6;  // microseconds
constexpr std::string_view kByNeurons = " us by neurons, ";
constexpr std::string_view kDense = " us dense";

// Of one number of rows.
struct WaysTimes {
  double by_neurons = 0.0;  // seconds
  double dense = 0.0;

  bool prefer_neurons() const { return by_neurons <= dense; }
};

std::string to_text(const WaysTimes& times) {
  return fmt::format("{:.3f}{}{:.3f}{}", times.by_neurons * kPerSecond, kByNeurons,
                     times.dense * kPerSecond, kDense);
}

// A number above 0 and what has to follow it.
std::optional<double> take_seconds(std::string_view& text, std::string_view unit) {
  double microseconds = 0.0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, microseconds);
  text.remove_prefix(static_cast<size_t>(stopped - text.data()));
  if (error != std::errc() || !std::isfinite(microseconds) || microseconds <= 0.0 ||
      !text.starts_with(unit)) {
    return {};
  }
  text.remove_prefix(unit.size());
  return microseconds / kPerSecond;
}

// A cache may hold anything.
std::optional<WaysTimes> times_from(std::string_view text) {
  const std::optional<double> by_neurons = take_seconds(text, kByNeurons);
  const std::optional<double> dense =
      by_neurons ? take_seconds(text, kDense) : std::optional<double>();
  return dense && text.empty() ? std::optional(WaysTimes{*by_neurons, *dense}) : std::nullopt;
}

OwnedTensor random_tensor(DType dtype, int64_t rows, int64_t columns, RandomFill fill,
                          ExecContext& ctx) {
  OwnedTensor tensor = allocate_scratch(ctx, dtype, {rows, columns}, "tuning of an MLP");
  fill_random(fill, Tensor(tensor.view.raw(), dtype, {rows * columns}, ctx.device), ctx);
  return tensor;
}

std::vector<int32_t> on_host(const Tensor& values, const ExecContext& ctx) {
  std::vector<int32_t> copy(static_cast<size_t>(values.element_count()));
  if (ctx.cuda != nullptr) {
    ctx.cuda->copy(copy.data(), values.raw(), values.bytes(), ctx.queue);
  } else {
    copy_bytes({}, copy.data(), values.device(), values.raw(), values.bytes());
  }
  return copy;
}

}  // namespace

// Of MLPs alike, which are run in turn: each call finds its own outside the L2.
class SparseMlp::CutOff {
 public:
  CutOff(const std::vector<SparseMlp*>& alike, DType dtype, TuneMeter& meter, TuneCache& cache,
         ExecContext& ctx)
      : alike_(alike), dtype_(dtype), meter_(meter), cache_(cache), ctx_(ctx) {}

  // Returns how many choices it measured.
  int64_t find(const std::set<int64_t>& buckets) {
    int64_t measured = 0;
    int64_t most = 0;
    for (const int64_t tokens : buckets) {
      const std::string full_key =
          fmt::format("{}, {} rows, {}", key(first()), tokens, meter_.device_key());
      const std::optional<std::string> known = cache_.find(full_key);
      std::optional<WaysTimes> times = known ? times_from(*known) : std::nullopt;
      if (!times) {
        times = measure(tokens);
        cache_.put(full_key, to_text(*times));
        ++measured;
      }
      if (!times->prefer_neurons()) {
        break;
      }
      most = tokens;
    }
    for (SparseMlp* mlp : alike_) {
      mlp->most_rows_ = most;
    }
    return measured;
  }

  // What the choice depends on besides the device and the number of rows.
  static std::string key(const SparseMlp& mlp) {
    const Parts& parts = mlp.parts_;
    return fmt::format("MLP by neurons {}, {}, {} {} of {}, {}{}, {}, {:.0f} % zero",
                       kCutOffVersion,
                       parts.signs ? fmt::format("{} votes", name_of(parts.prediction.votes))
                                   : std::string("exact"),
                       mlp.neurons(), mlp.gated() ? "gated" : "plain", parts.down.view.size(1),
                       name_of(parts.up.view.dtype()), parts.up_bias.view.empty() ? "" : ", biases",
                       name_of(parts.activation.kind), 100.0 * parts.expected_zeros);
  }

 private:
  const SparseMlp& first() const { return *alike_.front(); }

  WaysTimes measure(int64_t tokens) {
    const auto make = [&](int64_t columns, const RandomFill& fill) {
      return random_tensor(dtype_, tokens, columns, fill, ctx_);
    };
    const Tensor& down = first().parts_.down.view;
    const double zeros = first().parts_.expected_zeros;
    const OwnedTensor x = make(down.size(1), {.key = 1});
    const OwnedTensor y = make(down.size(1), {});
    OwnedTensor gates;  // above the threshold, or 0
    if (!first().parts_.signs) {
      const float centre = 2.0f + std::max(0.0f, first().parts_.activation.threshold);
      gates = make(down.size(0), {.key = 2, .centre = centre, .spread = 1.0f, .sparsity = zeros});
    } else if (predictions_.empty()) {
      predict_zeros();
    }
    int64_t bytes = 0;  // of a turn, at least
    for (const SparseMlp* mlp : alike_) {
      bytes += mlp->parts_.up.view.bytes() + mlp->parts_.down.view.bytes();
    }
    bytes = static_cast<int64_t>((1.0 - zeros) * static_cast<double>(bytes));
    size_t turn = 0;
    const auto seconds = [&](auto run) {
      const TuneMeter::Call call{.enqueue = [&] { run(turn++ % alike_.size()); },
                                 .tokens = tokens,
                                 .bytes_in_turn = bytes};
      return meter_.seconds(call, std::numeric_limits<double>::infinity()).value();
    };
    WaysTimes times;
    // By turns: the clocks of a device fall while it measures.
    for (int i = 0; i < kTurns; ++i) {
      times.by_neurons +=
          seconds([&](size_t mlp) { run_by_neurons(mlp, x.view, gates.view, y.view); }) / kTurns;
      times.dense += seconds([&](size_t mlp) { run_dense(mlp, x.view, y.view); }) / kTurns;
    }
    return times;
  }

  // Alphas of random x that skip the expected share.
  void predict_zeros() {
    for (const SparseMlp* mlp : alike_) {
      const SignWords signs = mlp->parts_.signs->view();
      const OwnedTensor x = random_tensor(dtype_, kVotingTokens, signs.columns, {.key = 1}, ctx_);
      const auto make = [&] {
        return allocate_scratch(ctx_, DType::i32, {kVotingTokens, signs.rows()}, "votes");
      };
      const OwnedTensor negative = make();
      const OwnedTensor positive = make();
      SignPrediction prediction = mlp->parts_.prediction;
      count_votes(x.view, signs, prediction.votes, negative.view, positive.view, ctx_);
      const std::vector<int32_t> votes = on_host(negative.view, ctx_);
      VoteHistogram histogram;
      histogram.add(votes, on_host(positive.view, ctx_), std::vector<uint8_t>(votes.size()));
      prediction.alpha = histogram.alpha_for_skipped_share(mlp->parts_.expected_zeros);
      predictions_.push_back(prediction);
    }
  }

  void run_by_neurons(size_t index, const Tensor& x, const Tensor& gates, const Tensor& y) {
    const SparseMlp& mlp = *alike_[index];
    if (mlp.parts_.signs) {
      mlp.forward_predicted(x, {}, {.by = predictions_[index]}, y, ctx_);
      return;
    }
    auto scratch = ctx_.workspace.scope();
    const Tensor h = scratch.tensor(dtype_, {gates.size(0), gates.size(1)});
    mlp.gate_.forward(x, h, ctx_);
    mlp.forward_gates(x, gates, {}, h, y, ctx_);
  }

  void run_dense(size_t index, const Tensor& x, const Tensor& y) {
    const SparseMlp& mlp = *alike_[index];
    if (mlp.parts_.signs) {
      mlp.forward_masked(x, {}, {.by = predictions_[index]}, y, ctx_);
    } else {
      mlp.dense_->forward(x, {}, y, ctx_);
    }
  }

  static constexpr int kTurns = 3;
  static constexpr int64_t kVotingTokens = 4;

  const std::vector<SparseMlp*>& alike_;
  DType dtype_;
  TuneMeter& meter_;
  TuneCache& cache_;
  ExecContext& ctx_;
  std::vector<SignPrediction> predictions_;  // of each MLP
};

int64_t SparseMlp::tune(std::span<SparseMlp* const> mlps, const Tuning& what, TuneMeter& meter,
                        TuneCache& cache, ExecContext& ctx) {
  std::set<int64_t> buckets;
  for (const int64_t tokens : what.tokens) {
    buckets.insert(token_bucket(tokens));
  }
  std::map<std::string, std::vector<SparseMlp*>> kinds;
  for (SparseMlp* mlp : mlps) {
    kinds[CutOff::key(*mlp)].push_back(mlp);
  }
  int64_t measured = 0;
  for (const auto& [kind, alike] : kinds) {
    measured += CutOff(alike, what.dtype, meter, cache, ctx).find(buckets);
  }
  return measured;
}

}  // namespace sparsellm
