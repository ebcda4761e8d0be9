#include "sparse/activation/missed_share.h"

#include <cmath>

#include "kernels/base/error.h"

namespace sparsellm {

std::optional<MissedShare> largest_missed_share(
    const MissedShareSearch& search, const std::function<double(double share)>& loss_of) {
  require(std::isfinite(search.max_loss) && search.max_loss >= 0.0,
          "the largest loss is {}; expected a finite number, at least 0", search.max_loss);
  require(search.evaluations >= 1, "a search with {} evaluations; use at least 1",
          search.evaluations);
  require(search.smallest > 0.0 && search.smallest < search.largest && search.largest <= 1.0,
          "shares from {} to {} are searched; expected 0 < smallest < largest <= 1",
          search.smallest, search.largest);
  std::optional<MissedShare> best;
  double low = search.smallest;
  double high = search.largest;
  for (int i = 0; i < search.evaluations; ++i) {
    const double share = std::sqrt(low * high);
    const double loss = loss_of(share);
    if (std::isfinite(loss) && loss <= search.max_loss) {
      best = MissedShare{.share = share, .loss = loss};
      low = share;
    } else {
      high = share;
    }
  }
  return best;
}

}  // namespace sparsellm
