#include <cmath>

#include "kernels/cpu_loops.h"
#include "kernels/device/norm_heads_cpu.h"
#include "kernels/norm_device.h"

namespace sparsellm {
namespace {

float mean_of(const float* x, int64_t count) {
  F32x8 total = F32x8::zero();
  for_each_vector(count, [&](int64_t i, auto lanes) { total = total + load(x + i, lanes); });
  return sum(total) / static_cast<float>(count);
}

// The mean of (x - center)^2.
float mean_square(const float* x, float center, int64_t count) {
  F32x8 total = F32x8::zero();
  for_each_vector(count, [&](int64_t i, auto lanes) {
    const F32x8 distance = keep_lanes(load(x + i, lanes) - F32x8::all(center), lanes);
    total = fma(distance, distance, total);
  });
  return sum(total) / static_cast<float>(count);
}

// y = (x - center) * scale * weight
template <class W>
void scale_row(const float* x, float center, float scale, const W* weight, int64_t count,
               float* y) {
  for_each_vector(count, [&](int64_t i, auto lanes) {
    const F32x8 normalised = (load(x + i, lanes) - F32x8::all(center)) * F32x8::all(scale);
    store(normalised * load(weight + i, lanes), y + i, lanes);
  });
}

void add_bias(const Tensor& bias, float* y) {
  visit_float(bias.dtype(), [&]<class B>(B) {
    const B* from = bias.data<B>();
    for_each_vector(bias.size(0), [&](int64_t i, auto lanes) {
      store(load(y + i, lanes) + load(from + i, lanes), y + i, lanes);
    });
  });
}

void add_delta(const Tensor& delta, float scale, const Tensor& x, int64_t token) {
  if (delta.empty()) {
    return;
  }
  const float* from = delta.row<float>(token);
  float* to = x.row<float>(token);
  for_each_vector(x.size(1), [&](int64_t i, auto lanes) {
    store(fma(load(from + i, lanes), F32x8::all(scale), load(to + i, lanes)), to + i, lanes);
  });
}

}  // namespace

void layer_norm_cpu(const Tensor& delta, const Tensor& x, const NormParams& params, const Tensor& y,
                    ExecContext& ctx) {
  const int64_t features = x.size(1);
  visit_float(params.weight.dtype(), [&]<class W>(W) {
    for_each_row(x.size(0), features, ctx, [&](int64_t token) {
      add_delta(delta, params.delta_scale, x, token);
      const float* from = x.row<float>(token);
      float* to = y.row<float>(token);
      const float mean = mean_of(from, features);
      const float variance = mean_square(from, mean, features);
      scale_row(from, mean, params.scale / std::sqrt(variance + params.epsilon),
                params.weight.data<W>(), features, to);
      if (!params.bias.empty()) {
        add_bias(params.bias, to);
      }
    });
  });
}

void rms_norm_cpu(const Tensor& delta, const Tensor& x, const NormParams& params, const Tensor& y,
                  ExecContext& ctx) {
  const int64_t features = x.size(1);
  visit_float(params.weight.dtype(), [&]<class W>(W) {
    for_each_row(x.size(0), features, ctx, [&](int64_t token) {
      add_delta(delta, params.delta_scale, x, token);
      const float* from = x.row<float>(token);
      const float scale =
          params.scale / std::sqrt(mean_square(from, 0.0f, features) + params.epsilon);
      scale_row(from, 0.0f, scale, params.weight.data<W>(), features, y.row<float>(token));
    });
  });
}

void norm_heads_cpu(const Tensor& weight, float epsilon, Tensor x, ExecContext& ctx) {
  const int64_t head_dim = weight.size(0);
  visit_float(weight.dtype(), [&]<class W>(W) {
    for_each_row(x.size(0), x.size(1), ctx, [&](int64_t token) {
      for (int64_t head = 0; head < x.size(1); head += head_dim) {
        float* values = x.row<float>(token) + head;
        const float scale = 1.0f / std::sqrt(mean_square(values, 0.0f, head_dim) + epsilon);
        scale_row(values, 0.0f, scale, weight.data<W>(), head_dim, values);
      }
    });
  });
}

}  // namespace sparsellm
