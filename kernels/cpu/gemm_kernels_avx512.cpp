// Products of dense weights by AVX-512 F, BW, DQ and VL.

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/gemm_kernels.h"

namespace sparsellm::gemm_cpu_kernels {
namespace {

struct Vec {
  static constexpr int kWidth = 16;
  __m512 v;

  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec all(float x) { return {_mm512_set1_ps(x)}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
};
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

inline __mmask16 mask_of(int64_t count) {
  return static_cast<__mmask16>(count <= 0 ? 0U : count >= 16 ? 0xffffU : (1U << count) - 1);
}

struct F32 {
  using Stored = float;

  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec load_partial(const float* p, int64_t count) {
    return {_mm512_maskz_loadu_ps(mask_of(count), p)};
  }
};

struct F16 {
  using Stored = uint16_t;

  static Vec load(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static Vec load_partial(const uint16_t* p, int64_t count) {
    return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask_of(count), p))};
  }
};

struct Bf16 {
  using Stored = uint16_t;

  static Vec to_float(__m256i values) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16))};
  }
  static Vec load(const uint16_t* p) {
    return to_float(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Vec load_partial(const uint16_t* p, int64_t count) {
    return to_float(_mm256_maskz_loadu_epi16(mask_of(count), p));
  }
};

using Partial = Vec[1];

// Two vectors' halves side by side, added up.
inline __m512 add_halves(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

inline void sum4(const Partial& a, const Partial& b, const Partial& c, const Partial& d,
                 float* sums) {
  const __m512 ab = add_halves(a[0].v, b[0].v);
  const __m512 cd = add_halves(c[0].v, d[0].v);
  __m512 v = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  v = _mm512_add_ps(v, _mm512_permute_ps(v, 0x4e));
  v = _mm512_add_ps(v, _mm512_permute_ps(v, 0xb1));
  const __m512i firsts = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
  _mm_storeu_ps(sums, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, v)));
}

constexpr int kTileRows = 4;
constexpr int kTileTokens = 6;
constexpr int kTileRowsOfOneToken = 4;

#include "kernels/cpu/multiply_rows.inc.h"
//
#include "kernels/cpu/listed_rows.inc.h"

}  // namespace

const Kernels kAvx512Kernels = {
    .f32 = dense_kernels<F32>(), .f16 = dense_kernels<F16>(), .bf16 = dense_kernels<Bf16>()};

}  // namespace sparsellm::gemm_cpu_kernels
