#include "sparse/activation/vote_histogram.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

// Of counts by the number of alphas that skip: all that alpha number `index` skips.
int64_t sum_above(const std::vector<int64_t>& counts, size_t index) {
  return std::accumulate(counts.begin() + static_cast<std::ptrdiff_t>(index) + 1, counts.end(),
                         int64_t{0});
}

int64_t sum_of(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

void add_counts(const std::vector<int64_t>& from, std::vector<int64_t>& to) {
  std::transform(from.begin(), from.end(), to.begin(), to.begin(), std::plus<>());
}

double quotient(int64_t part, int64_t whole, double of_nothing) {
  return whole == 0 ? of_nothing : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

std::vector<float> VoteHistogram::default_alphas() {
  constexpr int kPerOctave = 1024;
  std::vector<float> alphas;
  for (int i = -2 * kPerOctave; i <= 2 * kPerOctave; ++i) {
    alphas.push_back(static_cast<float>(std::exp2(static_cast<double>(i) / kPerOctave)));
  }
  return alphas;
}

VoteHistogram::VoteHistogram(std::vector<float> alphas)
    : alphas_(std::move(alphas)), zeros_(alphas_.size() + 1), active_(alphas_.size() + 1) {
  require(!alphas_.empty(), "votes are counted for no alpha; give at least one");
  float previous = 0.0f;
  for (float alpha : alphas_) {
    require(std::isfinite(alpha) && alpha > previous,
            "alpha {} comes after {}; expected finite numbers above 0, ascending", alpha, previous);
    previous = alpha;
  }
}

void VoteHistogram::add(std::span<const int32_t> negative, std::span<const int32_t> positive,
                        std::span<const uint8_t> active) {
  require(negative.size() == positive.size() && negative.size() == active.size(),
          "{} sums of negative votes, {} of positive ones and {} flags; expected as many of each",
          negative.size(), positive.size(), active.size());
  for (size_t i = 0; i < negative.size(); ++i) {
    const auto n = static_cast<float>(negative[i]);
    const auto p = static_cast<float>(positive[i]);
    const auto end = std::partition_point(alphas_.begin(), alphas_.end(),
                                          [&](float alpha) { return alpha * p < n; });
    std::vector<int64_t>& counts = active[i] != 0 ? active_ : zeros_;
    ++counts[static_cast<size_t>(end - alphas_.begin())];
  }
}

void VoteHistogram::add(const VoteHistogram& other) {
  require(alphas_ == other.alphas_, "the votes were counted for other alphas");
  add_counts(other.zeros_, zeros_);
  add_counts(other.active_, active_);
}

int64_t VoteHistogram::zeros() const { return sum_of(zeros_); }
int64_t VoteHistogram::active() const { return sum_of(active_); }

size_t VoteHistogram::index_of(float alpha) const {
  const auto found = std::lower_bound(alphas_.begin(), alphas_.end(), alpha);
  require(found != alphas_.end() && *found == alpha, "votes were not counted for alpha {}", alpha);
  return static_cast<size_t>(found - alphas_.begin());
}

int64_t VoteHistogram::missed(float alpha) const { return sum_above(active_, index_of(alpha)); }
int64_t VoteHistogram::skipped(float alpha) const {
  return missed(alpha) + sum_above(zeros_, index_of(alpha));
}

double VoteHistogram::missed_share(float alpha) const {
  return quotient(missed(alpha), active(), 0.0);
}

double VoteHistogram::precision(float alpha) const {
  const int64_t all = skipped(alpha);
  return quotient(all - missed(alpha), all, 1.0);
}

double VoteHistogram::recall(float alpha) const {
  return quotient(sum_above(zeros_, index_of(alpha)), zeros(), 1.0);
}

std::optional<float> VoteHistogram::alpha_for_missed_share(double share) const {
  require(share >= 0.0 && share <= 1.0, "{} of the active neurons may be missed; use 0 to 1",
          share);
  const int64_t all_active = active();
  if (zeros() + all_active == 0) {
    return {};
  }
  std::optional<float> smallest;
  int64_t missed = 0;
  for (size_t i = alphas_.size(); i-- > 0;) {  // smaller alphas miss more
    missed += active_[i + 1];
    if (quotient(missed, all_active, 0.0) > share) {
      break;
    }
    smallest = alphas_[i];
  }
  return smallest;
}

float VoteHistogram::alpha_for_skipped_share(double share) const {
  require(share >= 0.0 && share <= 1.0, "{} of the neurons are to be skipped; use 0 to 1", share);
  const double wanted = share * static_cast<double>(zeros() + active());
  const auto distance = [&](float alpha) {
    return std::abs(static_cast<double>(skipped(alpha)) - wanted);
  };
  return *std::ranges::min_element(alphas_, {}, distance);
}

}  // namespace sparsellm
