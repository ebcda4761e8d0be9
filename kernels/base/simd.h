#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/dtype.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define SPARSELLM_SIMD_AVX2 1
#else
#include <algorithm>
#include <cmath>
#endif

// Eight floats at a time, for the CPU ops. All operations are defined element by element, and the
// order of every sum is fixed, so that the result of a dot product depends neither on the tile that
// it was computed in nor on the width of the machine's registers.
namespace sparsellm {

#if defined(SPARSELLM_SIMD_AVX2)
#undef SPARSELLM_SIMD_AVX2

struct F32x8 {
  static constexpr int kWidth = 8;
  __m256 v;

  static F32x8 zero() { return {_mm256_setzero_ps()}; }
  static F32x8 all(float x) { return {_mm256_set1_ps(x)}; }
  static F32x8 load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static F32x8 load(const Half* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  static F32x8 load(const BFloat16* p) {
    const __m256i wide =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
  }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
};

inline F32x8 operator+(F32x8 a, F32x8 b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F32x8 operator-(F32x8 a, F32x8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F32x8 operator*(F32x8 a, F32x8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F32x8 operator/(F32x8 a, F32x8 b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F32x8 max(F32x8 a, F32x8 b) { return {_mm256_max_ps(a.v, b.v)}; }
inline F32x8 min(F32x8 a, F32x8 b) { return {_mm256_min_ps(a.v, b.v)}; }
inline F32x8 fma(F32x8 a, F32x8 b, F32x8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
// x where it is above the threshold or NaN, +0 elsewhere.
inline F32x8 keep_above(F32x8 x, F32x8 threshold) {
  return {_mm256_and_ps(x.v, _mm256_cmp_ps(x.v, threshold.v, _CMP_NLE_UQ))};
}
inline F32x8 round(F32x8 a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^n for integral n in [-126, 127].
inline F32x8 exp2_integral(F32x8 n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23))};
}

// The four sums of the elements of a, b, c, d, each ((0+1)+(2+3)) + ((4+5)+(6+7)).
inline void sum4(F32x8 a, F32x8 b, F32x8 c, F32x8 d, float* sums) {
  const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(a.v, b.v), _mm256_hadd_ps(c.v, d.v));
  _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
}

#else

struct F32x8 {
  static constexpr int kWidth = 8;
  float v[kWidth];

  static F32x8 zero() { return all(0.0f); }
  static F32x8 all(float x) { return {{x, x, x, x, x, x, x, x}}; }
  template <class T>
  static F32x8 load(const T* p) {
    F32x8 r;
    for (int i = 0; i < kWidth; ++i) {
      r.v[i] = to_float(p[i]);
    }
    return r;
  }
  void store(float* p) const { std::copy(v, v + kWidth, p); }
};

template <class F>
F32x8 map(F32x8 a, F32x8 b, F f) {
  F32x8 r;
  for (int i = 0; i < F32x8::kWidth; ++i) {
    r.v[i] = f(a.v[i], b.v[i]);
  }
  return r;
}
inline F32x8 operator+(F32x8 a, F32x8 b) {
  return map(a, b, [](float x, float y) { return x + y; });
}
inline F32x8 operator-(F32x8 a, F32x8 b) {
  return map(a, b, [](float x, float y) { return x - y; });
}
inline F32x8 operator*(F32x8 a, F32x8 b) {
  return map(a, b, [](float x, float y) { return x * y; });
}
inline F32x8 operator/(F32x8 a, F32x8 b) {
  return map(a, b, [](float x, float y) { return x / y; });
}
// Of a NaN and a number the second operand, as on x86.
inline F32x8 max(F32x8 a, F32x8 b) {
  return map(a, b, [](float x, float y) { return x > y ? x : y; });
}
inline F32x8 min(F32x8 a, F32x8 b) {
  return map(a, b, [](float x, float y) { return x < y ? x : y; });
}
inline F32x8 fma(F32x8 a, F32x8 b, F32x8 c) {
  F32x8 r;
  for (int i = 0; i < F32x8::kWidth; ++i) {
    r.v[i] = std::fma(a.v[i], b.v[i], c.v[i]);
  }
  return r;
}
inline F32x8 keep_above(F32x8 x, F32x8 threshold) {
  return map(x, threshold, [](float value, float limit) { return value <= limit ? 0.0f : value; });
}
inline F32x8 round(F32x8 a) {
  return map(a, a, [](float x, float) { return std::nearbyint(x); });
}
inline F32x8 exp2_integral(F32x8 n) {
  return map(n, n, [](float x, float) {
    return std::isnan(x) ? x : std::bit_cast<float>((static_cast<int32_t>(x) + 127) << 23);
  });
}
inline void sum4(F32x8 a, F32x8 b, F32x8 c, F32x8 d, float* sums) {
  const F32x8* all[] = {&a, &b, &c, &d};
  for (int i = 0; i < 4; ++i) {
    const float* x = all[i]->v;
    sums[i] = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
  }
}

#endif

// The first `count` < 8 elements; the rest are 0.
template <class T>
F32x8 load_partial(const T* p, int64_t count) {
  T padded[F32x8::kWidth] = {};
  for (int64_t i = 0; i < count; ++i) {
    padded[i] = p[i];
  }
  return F32x8::load(padded);
}

inline void store_partial(F32x8 x, float* p, int64_t count) {
  float all[F32x8::kWidth];
  x.store(all);
  for (int64_t i = 0; i < count; ++i) {
    p[i] = all[i];
  }
}

// Same order as sum4.
inline float sum(F32x8 a) {
  float sums[4];
  sum4(a, a, a, a, sums);
  return sums[0];
}

inline float max_element(F32x8 a) {
  float x[F32x8::kWidth];
  a.store(x);
  float largest = x[0];
  for (int i = 1; i < F32x8::kWidth; ++i) {
    largest = x[i] > largest ? x[i] : largest;
  }
  return largest;
}

// e^x to about 1 ulp: x = n ln 2 + r with |r| <= ln 2 / 2 (the product with ln 2 in two parts),
// then the Taylor series of e^r. Below -87.3 the result is 1.2e-38 instead of a subnormal or zero;
// above 88.3 it is 2.2e38. A NaN stays NaN.
inline F32x8 exp(F32x8 x) {
  const F32x8 clamped = min(F32x8::all(88.3f), max(F32x8::all(-87.3f), x));
  const F32x8 n = round(clamped * F32x8::all(1.44269504f));
  F32x8 r = fma(n, F32x8::all(-0.693359375f), clamped);
  r = fma(n, F32x8::all(2.12194440e-4f), r);
  F32x8 p = F32x8::all(1.0f / 5040);
  for (float coefficient : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    p = fma(p, r, F32x8::all(coefficient));
  }
  return p * exp2_integral(n);
}

}  // namespace sparsellm
