#include "models/random_loader.h"

#include <cmath>

#include "kernels/base/error.h"
#include "kernels/fill_random.h"
#include "sparse/dense/dense.h"
#include "sparse/registry.h"

namespace sparsellm {
namespace {

// Biases and embeddings, as models are initialised before they are trained.
constexpr float kSmallDeviation = 0.02f;

// Of a uniform distribution.
float spread_of(float deviation) { return std::sqrt(3.0f) * deviation; }

}  // namespace

RandomLoader::RandomLoader(Device device, const RandomWeights& weights)
    : WeightLoader(device, device.is_cuda() ? weights.dtype : DType::f32),
      weights_(weights),
      workspace_(device, 0),
      threads_(device.is_cuda() ? 1 : 0),
      cuda_(device.is_cuda() ? std::make_unique<CudaContext>(device) : nullptr),
      exec_{.device = device, .workspace = workspace_, .threads = threads_, .cuda = cuda_.get()} {
  require(weights.sparsity >= 0.0 && weights.sparsity <= 1.0,
          "the sparsity of random weights is {}; it lies between 0 and 1", weights.sparsity);
}

OwnedTensor RandomLoader::load(const Wanted& wanted) {
  RandomFill fill{.spread = spread_of(kSmallDeviation)};
  if (wanted.kind == Wanted::Kind::linear) {
    fill.spread = spread_of(1.0f / std::sqrt(static_cast<float>(wanted.columns)));
    fill.sparsity = weights_.sparsity;
  } else if (wanted.parts.front().name.ends_with("norm.weight")) {
    fill.centre = 1.0f;
    fill.spread = 0.0f;
  }
  OwnedTensor result = allocate(wanted, weights_.dtype);
  auto* destination = static_cast<std::byte*>(result.view.raw());
  for (const Wanted::Rows& part : wanted.parts) {
    const Tensor values(destination, weights_.dtype, {part.count * wanted.columns}, device());
    fill.key = random_key(weights_.seed, part.name);
    fill_random(fill, values, exec_);
    destination += values.bytes();
  }
  return result;
}

std::unique_ptr<WeightMatrix> RandomLoader::load_weight(const Wanted& wanted) {
  if (weights_.format.empty() || weights_.format == dense_format().name()) {
    return WeightLoader::load_weight(wanted);
  }
  const WeightFormat& format = weight_format(weights_.format);
  require(!device().is_cuda(), "random weights in the format {} cannot be made on {}",
          weights_.format, to_string(device()));
  const OwnedTensor dense = load(wanted);
  const std::string reason = format.why_not(dense.view);
  require(reason.empty(), "random weights cannot be in the format {}: {}", weights_.format, reason);
  std::unique_ptr<WeightMatrix> weight = format.load(format.encode(dense.view, threads_), device());
  count_bytes(weight->bytes());
  return weight;
}

void RandomLoader::finish() {
  if (cuda_) {
    cuda_->synchronize();
  }
}

}  // namespace sparsellm
