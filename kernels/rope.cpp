#include "kernels/rope.h"

#include <cmath>
#include <numbers>

#include "kernels/checks.h"
#include "kernels/rope_device.h"

namespace sparsellm {
namespace {

constexpr int64_t kMaxRotatedDim = 1024;  // four times that of any known model

bool positive(float x) { return std::isfinite(x) && x > 0.0f; }

// Llama 3.1's scaling: see RopeScaling.
float scale_llama3(float frequency, const RopeScaling& scaling) {
  const auto original = static_cast<float>(scaling.original_positions);
  const float wavelength = 2.0f * std::numbers::pi_v<float> / frequency;
  if (wavelength < original / scaling.high_frequency_factor) {
    return frequency;
  }
  if (wavelength > original / scaling.low_frequency_factor) {
    return frequency / scaling.factor;
  }
  const float kept = (original / wavelength - scaling.low_frequency_factor) /
                     (scaling.high_frequency_factor - scaling.low_frequency_factor);
  return (1.0f - kept) * frequency / scaling.factor + kept * frequency;
}

void check_scaling(const RopeScaling& scaling) {
  if (scaling.kind == RopeScaling::Kind::none) {
    return;
  }
  require(positive(scaling.factor), "rope scaling: the factor is {}", scaling.factor);
  if (scaling.kind == RopeScaling::Kind::llama3) {
    require(positive(scaling.low_frequency_factor) && positive(scaling.high_frequency_factor) &&
                scaling.low_frequency_factor < scaling.high_frequency_factor,
            "rope scaling: the frequency factors are {} (low) and {} (high)",
            scaling.low_frequency_factor, scaling.high_frequency_factor);
    require(scaling.original_positions > 0, "rope scaling: the original positions are {}",
            scaling.original_positions);
  }
}

}  // namespace

std::vector<float> rope_frequencies(int64_t head_dim, float theta, const RopeScaling& scaling) {
  require(head_dim > 0 && head_dim <= kMaxRotatedDim && head_dim % 2 == 0,
          "rope: head_dim {} is not an even number up to {}", head_dim, kMaxRotatedDim);
  require(positive(theta), "rope: theta is {}", theta);
  check_scaling(scaling);
  std::vector<float> frequencies(static_cast<size_t>(head_dim / 2));
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    float frequency = 1.0f / std::pow(theta, exponent);
    switch (scaling.kind) {
      case RopeScaling::Kind::none:
        break;
      case RopeScaling::Kind::linear:
        frequency /= scaling.factor;
        break;
      case RopeScaling::Kind::llama3:
        frequency = scale_llama3(frequency, scaling);
        break;
    }
    frequencies[static_cast<size_t>(i)] = frequency;
  }
  return frequencies;
}

void rope_angles(const Tensor& positions, const Tensor& frequencies, Tensor cos_sin,
                 ExecContext& ctx) {
  check_tensor({"rope_angles", "positions"}, positions, Elements::i32, {kAnySize}, ctx);
  check_tensor({"rope_angles", "frequencies"}, frequencies, Elements::f32, {kAnySize}, ctx);
  check_tensor({"rope_angles", "cos_sin"}, cos_sin, Elements::f32,
               {positions.size(0), 2 * frequencies.size(0)}, ctx);
  check_disjoint({"rope_angles", "frequencies and cos_sin"}, frequencies, cos_sin);
  if (ctx.device.is_cuda()) {
    rope_angles_cuda(positions, frequencies, cos_sin, ctx);
  } else {
    rope_angles_cpu(positions, frequencies, cos_sin, ctx);
  }
}

}  // namespace sparsellm
