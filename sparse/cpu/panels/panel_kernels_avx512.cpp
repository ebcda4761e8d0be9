// Panels by AVX-512 F, BW, DQ and VL: values are converted as they lie in memory, and expanded
// then.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "sparse/cpu/panels/panel_kernels.h"

namespace sparsellm::panels {
namespace {

#include "sparse/cpu/panels/panel_kernels_avx512.inc.h"
//
#include "sparse/cpu/panels/multiply_panel.inc.h"

// In place: an expansion whose destination is another register may wait for what was in it, even
// where it only clears (Zen 5).
inline Vec expand(__m512 packed, uint32_t mask) {
  asm("vexpandps %0, %0%{%1%}%{z%}" : "+v"(packed) : "Yk"(static_cast<__mmask16>(mask)));
  return {packed};
}

inline int values_below(uint64_t mask, int bit) {
  return __builtin_popcountll(mask & ((uint64_t{1} << bit) - 1));
}

struct F16 {
  static constexpr int kTokensInRegisters = 4;

  template <int I>
  static Vec part(uint64_t mask, const uint8_t* values) {
    const uint8_t* const from = values + 2 * values_below(mask, 16 * I);
    return expand(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))),
                  static_cast<uint32_t>(mask >> (16 * I)) & 0xffff);
  }

  template <class F>
  static const uint8_t* column(uint64_t mask, const uint8_t* values, F&& f) {
    f(Index<0>{}, part<0>(mask, values));
    f(Index<1>{}, part<1>(mask, values));
    f(Index<2>{}, part<2>(mask, values));
    f(Index<3>{}, part<3>(mask, values));
    return values + 2 * __builtin_popcountll(mask);
  }
};

struct Bf16 {
  static constexpr int kTokensInRegisters = 4;

  // 16 bits, in the order of the mask.
  template <int I>
  static __m512 part(uint64_t mask, const uint8_t* values) {
    const uint8_t* const from = values + 2 * values_below(mask, 16 * I);
    const __m512i wide =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return expand(_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)),
                  static_cast<uint32_t>(mask >> (16 * I)) & 0xffff)
        .v;
  }

  // Two parts hold rows i and i + 16 in turn.
  template <int I, class F>
  static void rows(uint64_t mask, const uint8_t* values, F&& f) {
    const __m512i even =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    const __m512 low = part<I>(mask, values);
    const __m512 high = part<I + 1>(mask, values);
    f(Index<I>{}, Vec{_mm512_permutex2var_ps(low, even, high)});
    f(Index<I + 1>{}, Vec{_mm512_permutex2var_ps(low, odd, high)});
  }

  template <class F>
  static const uint8_t* column(uint64_t mask, const uint8_t* values, F&& f) {
    rows<0>(mask, values, f);
    rows<2>(mask, values, f);
    return values + 2 * __builtin_popcountll(mask);
  }
};

}  // namespace

const Kernels kAvx512Kernels = {.f16 = multiply<F16>, .bf16 = multiply<Bf16>};

}  // namespace sparsellm::panels
