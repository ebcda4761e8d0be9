#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace sparsellm {

// How well a layer's votes (sparse/activation/sign_predictor.h) tell zero neurons from active ones,
// for every alpha of a grid at once: what calibration chooses alphas by. The votes that neurons got
// are counted by how many alphas of the grid skip the neuron, by the predictor's own comparison.
// Since what is skipped at some alpha is skipped at every smaller one, all figures are exact, and
// since counts are integers, they depend neither on threads nor on the order of tokens.
class VoteHistogram {
 public:
  // 1/4 to 4 in equal ratios of 2^(1/1024), 1 among them: steps of 0.07 %, about what one vote of
  // 5,900 changes when it changes sides.
  static std::vector<float> default_alphas();

  // The grid: at least one alpha, ascending, finite and above 0; others are an Error.
  explicit VoteHistogram(std::vector<float> alphas = default_alphas());

  // The sums of votes of neurons of this layer, none of them negative, and whether each was in
  // truth active (not 0) or zero. Throws Error if the lengths differ.
  void add(std::span<const int32_t> negative, std::span<const int32_t> positive,
           std::span<const uint8_t> active);
  // What another counted, by the same grid; another grid is an Error.
  void add(const VoteHistogram& other);

  std::span<const float> alphas() const { return alphas_; }
  // Neurons that were zero, and that were active, over all tokens.
  int64_t zeros() const;
  int64_t active() const;

  // At an alpha of the grid; another is an Error. Neurons that are skipped, active ones among them,
  // and these as a share of all active ones (0 if there are none).
  int64_t skipped(float alpha) const;
  int64_t missed(float alpha) const;
  double missed_share(float alpha) const;
  // Of what is skipped, the share that is zero; of what is zero, the share that is skipped. 1 where
  // nothing is skipped, or nothing is zero.
  double precision(float alpha) const;
  double recall(float alpha) const;

  // The smallest alpha, which skips the most, whose missed_share() is at most `share` of [0, 1].
  // Without a value the layer must not skip at all: even the largest alpha of the grid misses more
  // (a neuron with no positive votes is skipped at any), or nothing was counted.
  std::optional<float> alpha_for_missed_share(double share) const;
  // The alpha that skips the share of [0, 1] of all neurons as nearly as any of the grid.
  float alpha_for_skipped_share(double share) const;

 private:
  size_t index_of(float alpha) const;

  std::vector<float> alphas_;
  // By the number of alphas, the smallest first, that skip a neuron.
  std::vector<int64_t> zeros_;
  std::vector<int64_t> active_;
};

}  // namespace sparsellm
