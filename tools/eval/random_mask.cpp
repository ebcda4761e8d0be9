#include "tools/eval/random_mask.h"

#include <algorithm>
#include <cmath>

namespace sparsellm {

void RandomMask::observe(const Neurons& neurons, ExecContext&) {
  // Of the upper 53 bits of a number, which a double holds.
  const auto below = static_cast<uint64_t>(std::ldexp(share_, 53));
  auto* const values = neurons.values.data<float>();
  for (int64_t i = 0; i < neurons.values.element_count(); ++i) {
    if (random_() >> 11 < below) {
      values[i] = 0.0f;
    }
  }
}

}  // namespace sparsellm
