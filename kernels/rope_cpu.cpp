#include <cmath>

#include "kernels/cpu_loops.h"
#include "kernels/device/rotate_cpu.h"
#include "kernels/rope_device.h"

namespace sparsellm {
namespace {

// A sine takes as long as this many element-wise operations.
constexpr int64_t kElementsPerSine = 32;

}  // namespace

void rope_angles_cpu(const Tensor& positions, const Tensor& frequencies, Tensor cos_sin,
                     ExecContext& ctx) {
  const int64_t half = frequencies.size(0);
  const float* frequency = frequencies.data<float>();
  for_each_row(positions.size(0), kElementsPerSine * half, ctx, [&](int64_t token) {
    const auto position = static_cast<float>(positions.data<int32_t>()[token]);
    float* cosines = cos_sin.row<float>(token);
    float* sines = cosines + half;
    for (int64_t i = 0; i < half; ++i) {
      const float angle = position * frequency[i];
      cosines[i] = std::cos(angle);
      sines[i] = std::sin(angle);
    }
  });
}

void rotate_cpu(const Tensor& cos_sin, Tensor x, ExecContext& ctx) {
  const int64_t head_dim = cos_sin.size(1);
  const int64_t half = head_dim / 2;
  for_each_row(x.size(0), x.size(1), ctx, [&](int64_t token) {
    const float* cosines = cos_sin.row<float>(token);
    const float* sines = cosines + half;
    for (int64_t head = 0; head < x.size(1); head += head_dim) {
      float* first = x.row<float>(token) + head;
      float* second = first + half;
      for_each_vector(half, [&](int64_t i, auto lanes) {
        const F32x8 a = load(first + i, lanes);
        const F32x8 b = load(second + i, lanes);
        const F32x8 cosine = load(cosines + i, lanes);
        const F32x8 sine = load(sines + i, lanes);
        store(a * cosine - b * sine, first + i, lanes);
        store(b * cosine + a * sine, second + i, lanes);
      });
    }
  });
}

}  // namespace sparsellm
