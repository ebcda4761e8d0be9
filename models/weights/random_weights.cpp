#include "models/weights/random_weights.h"

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

// `prefix`: of messages.
void require_zeros(const std::string& prefix, double sparsity, const ZeroPattern& pattern) {
  require(sparsity >= 0.0 && sparsity <= 1.0,
          "{}the sparsity of random weights is {}; it lies between 0 and 1", prefix, sparsity);
  const std::string reason = why_not(pattern, sparsity);
  require(reason.empty(), "{}random weights have no pattern {}", prefix, reason);
}

}  // namespace

RandomLinear RandomWeights::linear(std::string_view weight) const {
  const size_t end = weight.rfind('.');
  const auto own = planned.find(weight.substr(0, end));
  return own != planned.end() ? own->second : RandomLinear{sparsity, pattern, format};
}

void require_possible(const RandomWeights& weights) {
  require_zeros("", weights.sparsity, weights.pattern);
  for (const auto& [module, linear] : weights.planned) {
    require_zeros(module + ": ", linear.sparsity, linear.pattern);
  }
}

}  // namespace sparsellm
