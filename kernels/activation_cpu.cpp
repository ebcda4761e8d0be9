#include "kernels/activation_device.h"
#include "kernels/cpu_loops.h"
#include "kernels/device/activate_values.h"

namespace sparsellm {
namespace {

// gelu, gelu_tanh and silu are x * p(x) with a p that climbs from 0 to 1 and p(x) + p(-x) = 1.
// Hence x * p(x) = max(x, 0) - |x| * p(-|x|): one formula for p's lower tail serves both signs,
// keeps its relative accuracy there, and is exact where p is 0 or 1. |x| is limited to where |x| *
// p(-|x|) has vanished, before any power of it overflows.
F32x8 magnitude(F32x8 x, float limit) { return min(F32x8::all(limit), max(F32x8::zero() - x, x)); }

F32x8 relu(F32x8 x) { return keep_above(x, F32x8::zero()); }

// Phi(-a) * exp(a^2 / 2) is smooth and falls slowly; in s = 1 / (1 + 0.3 a) a polynomial of degree
// 8 (minimax for a in [0, 13], fitted with the Remez algorithm) has it to a relative error of 6e-8.
F32x8 gelu(F32x8 x) {
  const F32x8 a = magnitude(x, 13.0f);
  const F32x8 s = F32x8::all(1.0f) / fma(a, F32x8::all(0.3f), F32x8::all(1.0f));
  F32x8 p = F32x8::all(0.0382709778f);
  for (float coefficient : {-0.168643402f, 0.227577706f, -0.07526516f, 0.14167543f, 0.0950512399f,
                            0.121825853f, 0.119501002f, 6.38287158e-6f}) {
    p = fma(p, s, F32x8::all(coefficient));
  }
  return relu(x) - a * p * exp(a * a * F32x8::all(-0.5f));
}

// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u))
F32x8 gelu_tanh(F32x8 x) {
  const F32x8 a = magnitude(x, 10.0f);
  const F32x8 twice_u =
      a * fma(a * a, F32x8::all(0.0713548163f), F32x8::all(1.59576912f));  // 2 sqrt(2/pi)
  return relu(x) - a / (F32x8::all(1.0f) + exp(twice_u));
}

F32x8 silu(F32x8 x) {
  const F32x8 a = magnitude(x, 88.0f);
  return relu(x) - a / (F32x8::all(1.0f) + exp(a));
}

// Calls body(f) with the function from F32x8 to F32x8.
template <class Body>
void visit_function(const Activation& activation, Body&& body) {
  switch (activation.kind) {
    case Activation::Kind::none:
      return body([](F32x8 x) { return x; });
    case Activation::Kind::relu:
      return body([](F32x8 x) { return relu(x); });
    case Activation::Kind::gelu:
      return body([](F32x8 x) { return gelu(x); });
    case Activation::Kind::gelu_tanh:
      return body([](F32x8 x) { return gelu_tanh(x); });
    case Activation::Kind::silu:
      return body([](F32x8 x) { return silu(x); });
    case Activation::Kind::fatrelu:
      const F32x8 threshold = F32x8::all(activation.threshold);
      return body([threshold](F32x8 x) { return keep_above(x, threshold); });
  }
}

void clear_inactive(const Tensor& active, int64_t row, const Tensor& x) {
  if (active.empty()) {
    return;
  }
  const auto* const flags = active.row<uint8_t>(row);
  float* const values = x.row<float>(row);
  for (int64_t i = 0; i < x.size(1); ++i) {
    values[i] = flags[i] != 0 ? values[i] : 0.0f;
  }
}

}  // namespace

void activate_values(const Activation& activation, float* values, int64_t count) {
  if (activation.kind == Activation::Kind::none) {
    return;
  }
  visit_function(activation, [&](auto function) {
    for_each_vector(count, [&](int64_t i, auto lanes) {
      store(function(load(values + i, lanes)), values + i, lanes);
    });
  });
}

void activate_cpu(const Activation& activation, const Tensor& active, Tensor x, ExecContext& ctx) {
  for_each_row(x.size(0), x.size(1), ctx, [&](int64_t row) {
    activate_values(activation, x.row<float>(row), x.size(1));
    clear_inactive(active, row, x);
  });
}

void activate_gated_cpu(const Activation& activation, const Tensor& gate_up, const Tensor& active,
                        Tensor y, ExecContext& ctx) {
  const int64_t features = y.size(1);
  visit_function(activation, [&](auto function) {
    for_each_row(y.size(0), features, ctx, [&](int64_t row) {
      const float* gate = gate_up.row<float>(row);
      const float* up = gate + features;
      float* out = y.row<float>(row);
      for_each_vector(features, [&](int64_t i, auto lanes) {
        store(function(load(gate + i, lanes)) * load(up + i, lanes), out + i, lanes);
      });
      clear_inactive(active, row, y);
    });
  });
}

}  // namespace sparsellm
