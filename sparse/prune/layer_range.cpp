#include "sparse/prune/layer_range.h"

#include <cmath>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

struct Borders {
  int64_t begin = 0;
  int64_t end = 0;
};

int64_t round_half_up(double x) {
  constexpr double kTolerance = 1e-9;  // 0.1 * 5 and (1 - 0.9) * 5 are one half
  return static_cast<int64_t>(std::floor(x + 0.5 + kTolerance));
}

int64_t border(double share, int64_t layers) {
  const auto count = static_cast<double>(layers);
  return share <= 0.5 ? round_half_up(share * count)
                      : layers - round_half_up((1.0 - share) * count);
}

Borders borders(const LayerRange& range, int64_t layers) {
  if (range.unit == LayerRange::Unit::share) {
    return {border(range.begin, layers), border(range.end, layers)};
  }
  const auto begin = static_cast<int64_t>(range.begin);
  const auto end = static_cast<int64_t>(range.end);
  const Borders found{begin < 0 ? begin + layers : begin, end <= 0 ? end + layers : end};
  require(0 <= found.begin && found.begin < found.end && found.end <= layers,
          "the layers [{}, {}] of a model with {} layers", begin, end, layers);
  return found;
}

}  // namespace

bool LayerRange::contains(int64_t layer, int64_t layers) const {
  const auto [first, last] = borders(*this, layers);
  return (first <= layer && layer < last) == (side == Side::inside);
}

}  // namespace sparsellm
