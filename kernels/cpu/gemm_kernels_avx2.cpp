// Products of dense weights by AVX2, FMA and F16C.

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/gemm_kernels.h"

namespace sparsellm::gemm_cpu_kernels {
namespace {

struct Vec {
  static constexpr int kWidth = 8;
  __m256 v;

  static Vec zero() { return {_mm256_setzero_ps()}; }
  static Vec all(float x) { return {_mm256_set1_ps(x)}; }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
};
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }

// The first values of a row's end, with zeros after them.
template <class T>
struct Padded {
  alignas(32) T values[Vec::kWidth];

  Padded(const T* p, int64_t count) {
    for (int i = 0; i < Vec::kWidth; ++i) {
      values[i] = i < count ? p[i] : T{};
    }
  }
};

struct F32 {
  using Stored = float;

  static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Vec load_partial(const float* p, int64_t count) {
    return load(Padded<float>(p, count).values);
  }
};

struct F16 {
  using Stored = uint16_t;

  static Vec load(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  static Vec load_partial(const uint16_t* p, int64_t count) {
    return load(Padded<uint16_t>(p, count).values);
  }
};

struct Bf16 {
  using Stored = uint16_t;

  static Vec load(const uint16_t* p) {
    const __m256i wide =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
  }
  static Vec load_partial(const uint16_t* p, int64_t count) {
    return load(Padded<uint16_t>(p, count).values);
  }
};

using Partial = Vec[2];

// Sixteen partial sums -> four.
inline __m128 sum_to_4(const Partial& p) {
  const __m256 v = _mm256_add_ps(p[0].v, p[1].v);
  return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
}

// Four of two sums each -> two of each, in turn.
inline __m128 add_pairs(__m128 a, __m128 b) {
  return _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
}

inline void sum4(const Partial& a, const Partial& b, const Partial& c, const Partial& d,
                 float* sums) {
  const __m128 ab = add_pairs(sum_to_4(a), sum_to_4(b));
  const __m128 cd = add_pairs(sum_to_4(c), sum_to_4(d));
  _mm_storeu_ps(sums, _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
}

constexpr int kTileRows = 3;
constexpr int kTileTokens = 4;
constexpr int kTileRowsOfOneToken = 4;

#include "kernels/cpu/multiply_rows.inc.h"
//
#include "kernels/cpu/listed_rows.inc.h"

}  // namespace

const Kernels kAvx2Kernels = {
    .f32 = dense_kernels<F32>(), .f16 = dense_kernels<F16>(), .bf16 = dense_kernels<Bf16>()};

}  // namespace sparsellm::gemm_cpu_kernels
