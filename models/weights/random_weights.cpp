#include "models/weights/random_weights.h"

#include <utility>

#include "kernels/base/error.h"
#include "sparse/records_choice.h"

namespace sparsellm {
namespace {

// `prefix`: of messages.
void require_zeros(const std::string& prefix, double sparsity, const ZeroPattern& pattern) {
  require(sparsity >= 0.0 && sparsity <= 1.0,
          "{}the sparsity of random weights is {}; it lies between 0 and 1", prefix, sparsity);
  const std::string reason = why_not(pattern, sparsity);
  require(reason.empty(), "{}random weights have no pattern {}", prefix, reason);
}

std::string_view module_of(std::string_view weight) { return weight.substr(0, weight.rfind('.')); }

}  // namespace

RandomLinear RandomWeights::linear(std::string_view weight) const {
  const auto own = planned.find(module_of(weight));
  return own != planned.end() ? own->second : RandomLinear{sparsity, pattern, format, records};
}

void require_possible(const RandomWeights& weights) {
  require_zeros("", weights.sparsity, weights.pattern);
  check_records(weights.records);
  for (const auto& [module, linear] : weights.planned) {
    require_zeros(module + ": ", linear.sparsity, linear.pattern);
    check_records(linear.records);
  }
}

RandomWeights in_format(RandomWeights weights, const LayerFormat& in) {
  weights.format = in.format;
  weights.records = in.layout;
  for (auto& [module, linear] : weights.planned) {
    linear.format = in.format;
    linear.records = in.layout;
  }
  return weights;
}

RandomWeights in_formats(RandomWeights weights, const LayerFormats& formats) {
  for (const auto& [weight, in] : formats) {
    RandomLinear linear = weights.linear(weight);
    linear.format = in.format;
    linear.records = in.layout;
    weights.planned.insert_or_assign(std::string(module_of(weight)), std::move(linear));
  }
  return weights;
}

}  // namespace sparsellm
