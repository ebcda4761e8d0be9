// Products of dense weights in plain C++, which the compiler turns into what the build's -march
// allows.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/cpu/gemm_kernels.h"

namespace sparsellm::gemm_cpu_kernels {
namespace {

struct Vec {
  static constexpr int kWidth = kLanes;
  float v[kLanes];

  static Vec zero() { return {}; }
  static Vec all(float x) {
    Vec result;
    std::fill_n(result.v, kLanes, x);
    return result;
  }
  void store(float* p) const { std::copy_n(v, kLanes, p); }
};
inline Vec fma(const Vec& a, const Vec& b, const Vec& c) {
  Vec result;
  for (int i = 0; i < kLanes; ++i) {
    result.v[i] = std::fma(a.v[i], b.v[i], c.v[i]);
  }
  return result;
}

template <class T>
struct Values {
  using Stored = T;

  static Vec load(const T* p) {
    Vec result;
    for (int i = 0; i < kLanes; ++i) {
      result.v[i] = to_float(p[i]);
    }
    return result;
  }
  static Vec load_partial(const T* p, int64_t count) {
    Vec result = Vec::zero();
    for (int64_t i = 0; i < std::min<int64_t>(count, kLanes); ++i) {
      result.v[i] = to_float(p[i]);
    }
    return result;
  }
};
using F32 = Values<float>;
using F16 = Values<Half>;
using Bf16 = Values<BFloat16>;

using Partial = Vec[1];

inline float sum(const Partial& p) {
  Vec v = p[0];
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      v.v[i] += v.v[i + half];
    }
  }
  return v.v[0];
}

inline void sum4(const Partial& a, const Partial& b, const Partial& c, const Partial& d,
                 float* sums) {
  sums[0] = sum(a);
  sums[1] = sum(b);
  sums[2] = sum(c);
  sums[3] = sum(d);
}

constexpr int kTileRows = 2;
constexpr int kTileTokens = 2;
constexpr int kTileRowsOfOneToken = 4;

#include "kernels/cpu/multiply_rows.inc.h"
//
#include "kernels/cpu/listed_rows.inc.h"

}  // namespace

const Kernels kPortableKernels = {
    .f32 = dense_kernels<F32>(), .f16 = dense_kernels<F16>(), .bf16 = dense_kernels<Bf16>()};

}  // namespace sparsellm::gemm_cpu_kernels
