// Panels by AVX-512 with VBMI2, which expands 16-bit values.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "sparse/cpu/panels/panel_kernels.h"

namespace sparsellm::panels {
namespace {

#include "sparse/cpu/panels/panel_kernels_avx512.inc.h"
//
#include "sparse/cpu/panels/multiply_panel.inc.h"

// In place, from a register: an expansion whose destination is another register may wait for what
// was in it, even where it only clears (Zen 5), and one that loads is slow.
inline __m512i expand(const uint8_t* values, uint32_t mask) {
  __m512i packed = _mm512_loadu_si512(values);
  asm("vpexpandw %0, %0%{%1%}%{z%}" : "+v"(packed) : "Yk"(static_cast<__mmask32>(mask)));
  return packed;
}

struct Expanded {
  __m512i low;   // of bits 0 to 31
  __m512i high;  // and 32 to 63
  const uint8_t* end;
};
inline Expanded expand_column(uint64_t mask, const uint8_t* values) {
  const auto low = static_cast<uint32_t>(mask);
  return {.low = expand(values, low),
          .high = expand(values + 2 * __builtin_popcount(low), static_cast<uint32_t>(mask >> 32)),
          .end = values + 2 * __builtin_popcountll(mask)};
}

// f16 from memory: a conversion from a register needs the port of permutations and expansions,
// which is the one that all wait for on Intel's cores.
inline Vec converted(const uint16_t* p) {
  Vec result;
  asm("vcvtph2ps %1, %0" : "=v"(result.v) : "m"(*reinterpret_cast<const __m256i*>(p)));
  return result;
}

struct F16 {
  static constexpr int kTokensInRegisters = 4;

  template <class F>
  static const uint8_t* column(uint64_t mask, const uint8_t* values, F&& f) {
    const Expanded expanded = expand_column(mask, values);
    alignas(64) uint16_t rows[kRows];
    _mm512_store_si512(rows, expanded.low);
    _mm512_store_si512(rows + 32, expanded.high);
    f(Index<0>{}, converted(rows));
    f(Index<1>{}, converted(rows + 16));
    f(Index<2>{}, converted(rows + 32));
    f(Index<3>{}, converted(rows + 48));
    return expanded.end;
  }
};

struct Bf16 {
  static constexpr int kTokensInRegisters = 4;

  static Vec low_halves(__m512i words) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(words, 16))};
  }
  static Vec high_halves(__m512i words) {
    return {_mm512_castsi512_ps(
        _mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
  }

  template <class F>
  static const uint8_t* column(uint64_t mask, const uint8_t* values, F&& f) {
    const Expanded expanded = expand_column(mask, values);
    f(Index<0>{}, low_halves(expanded.low));
    f(Index<1>{}, high_halves(expanded.low));
    f(Index<2>{}, low_halves(expanded.high));
    f(Index<3>{}, high_halves(expanded.high));
    return expanded.end;
  }
};

}  // namespace

const Kernels kAvx512Vbmi2Kernels = {.f16 = multiply<F16>, .bf16 = multiply<Bf16>};

}  // namespace sparsellm::panels
