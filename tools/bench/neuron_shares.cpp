#include "tools/bench/neuron_shares.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/error.h"
#include "sparse/activation/vote_histogram.h"

namespace sparsellm {

void check_shares(const NeuronShares& shares) {
  require(shares.predicted >= 0.0 && shares.zeros <= 1.0 && shares.predicted <= shares.zeros,
          "{} of the neurons predicted to be zero and {} zero: expected shares between 0 and 1, "
          "the first not above the second, since what is predicted counts as zero",
          shares.predicted, shares.zeros);
}

SignPrediction prediction_for(double predicted, Votes votes, const Tensor& x, const SignWords& w,
                              ExecContext& ctx) {
  const auto make = [&] { return allocate_tensor({}, DType::i32, {x.size(0), w.rows()}, "votes"); };
  const OwnedTensor negative = make();
  const OwnedTensor positive = make();
  count_votes(x, w, votes, negative.view, positive.view, ctx);
  const auto count = static_cast<size_t>(x.size(0) * w.rows());
  VoteHistogram histogram;
  histogram.add({negative.view.data<int32_t>(), count}, {positive.view.data<int32_t>(), count},
                std::vector<uint8_t>(count));
  return {.votes = votes, .alpha = histogram.alpha_for_skipped_share(predicted)};
}

float threshold_for(double zeros, const Tensor& gates, const Tensor& active) {
  std::vector<float> computed;
  for (int64_t token = 0; token < gates.size(0); ++token) {
    for (int64_t neuron = 0; neuron < gates.size(1); ++neuron) {
      if (active.row<uint8_t>(token)[neuron] != 0) {
        computed.push_back(gates.row<float>(token)[neuron]);
      }
    }
  }
  if (computed.empty()) {
    return 0.0f;
  }
  std::ranges::sort(computed);
  const auto count = static_cast<double>(gates.size(0) * gates.size(1));
  const auto wanted = static_cast<size_t>(std::llround((1.0 - zeros) * count));
  const size_t below = computed.size() - std::min(wanted, computed.size());
  // Beyond the ends: further from all gates than they are off.
  constexpr float kMargin = 1.0f;
  if (below == 0) {
    return computed.front() - kMargin;
  }
  if (below == computed.size()) {
    return computed.back() + kMargin;
  }
  return std::midpoint(computed[below - 1], computed[below]);
}

}  // namespace sparsellm
