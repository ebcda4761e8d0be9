#pragma once

#include <functional>
#include <optional>

namespace sparsellm {

// Calibration has one number for a whole model: the share of its active neurons that each layer may
// miss (VoteHistogram::alpha_for_missed_share). The more, the fewer weights are read and the larger
// the loss.
struct MissedShareSearch {
  double max_loss = 0.005;  // finite, at least 0
  int evaluations = 10;     // at most so many, at least 1; each may be expensive
  // The range that is searched, 0 < smallest < largest <= 1. It is cut at its geometric mean: ten
  // evaluations tell shares apart that differ by 0.9 %.
  double smallest = 1e-4;
  double largest = 1.0;
};

struct MissedShare {
  double share = 0.0;
  double loss = 0.0;  // that was measured with it
};

// The largest share whose loss is at most max_loss, of those that bisection tries, which takes the
// loss for one that grows with the share. A loss that is NaN or infinite is too much. Without a
// value no share that was tried is within the limit: the model may skip nothing. Throws Error for
// settings out of range, and what loss_of throws.
std::optional<MissedShare> largest_missed_share(const MissedShareSearch& search,
                                                const std::function<double(double share)>& loss_of);

}  // namespace sparsellm
