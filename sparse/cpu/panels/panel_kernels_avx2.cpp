// Panels by AVX2, FMA and F16C: eight packed values go to their places by a shuffle from a table.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "sparse/cpu/panels/panel_kernels.h"

namespace sparsellm::panels {
namespace {

struct Vec {
  static constexpr int kWidth = 8;
  __m256 v;

  static Vec zero() { return {_mm256_setzero_ps()}; }
  static Vec all(float x) { return {_mm256_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
};
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }

constexpr int kTileVectors = 2;
constexpr int kTileTokens = 6;

#include "sparse/cpu/panels/multiply_panel.inc.h"

// For each mask of eight bits the bytes of eight packed values that go to each place; 0x80: none.
struct Shuffles {
  alignas(64) uint8_t bytes[256][16];
};
constexpr Shuffles make_shuffles() {
  Shuffles shuffles{};
  for (int mask = 0; mask < 256; ++mask) {
    int value = 0;
    for (int place = 0; place < 8; ++place) {
      const bool there = (mask >> place & 1) != 0;
      shuffles.bytes[mask][2 * place] = static_cast<uint8_t>(there ? 2 * value : 0x80);
      shuffles.bytes[mask][2 * place + 1] = static_cast<uint8_t>(there ? 2 * value + 1 : 0x80);
      value += there ? 1 : 0;
    }
  }
  return shuffles;
}
constexpr Shuffles kShuffles = make_shuffles();

// The values of bits [8 I, 8 I + 8). Their place depends on the mask alone, not on the part before.
template <int I>
inline __m128i part(uint64_t mask, const uint8_t* values) {
  const uint64_t below = mask & ((uint64_t{1} << (8 * I)) - 1);
  const __m128i packed =
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(values + 2 * __builtin_popcountll(below)));
  const uint64_t bits = mask >> (8 * I) & 0xff;
  return _mm_shuffle_epi8(packed,
                          _mm_load_si128(reinterpret_cast<const __m128i*>(kShuffles.bytes[bits])));
}

struct F16 {
  static constexpr int kTokensInRegisters = 1;

  template <class F>
  static const uint8_t* column(uint64_t mask, const uint8_t* values, F&& f) {
    f(Index<0>{}, Vec{_mm256_cvtph_ps(part<0>(mask, values))});
    f(Index<1>{}, Vec{_mm256_cvtph_ps(part<1>(mask, values))});
    f(Index<2>{}, Vec{_mm256_cvtph_ps(part<2>(mask, values))});
    f(Index<3>{}, Vec{_mm256_cvtph_ps(part<3>(mask, values))});
    f(Index<4>{}, Vec{_mm256_cvtph_ps(part<4>(mask, values))});
    f(Index<5>{}, Vec{_mm256_cvtph_ps(part<5>(mask, values))});
    f(Index<6>{}, Vec{_mm256_cvtph_ps(part<6>(mask, values))});
    f(Index<7>{}, Vec{_mm256_cvtph_ps(part<7>(mask, values))});
    return values + 2 * __builtin_popcountll(mask);
  }
};

struct Bf16 {
  static constexpr int kTokensInRegisters = 1;

  // Bits [16 I, 16 I + 16) hold eight rows of vector kLow and those of vector kLow + 2 in turn.
  template <int I, int kLow, class F>
  static void rows(uint64_t mask, const uint8_t* values, F&& f) {
    const __m256i words =
        _mm256_set_m128i(part<2 * I + 1>(mask, values), part<2 * I>(mask, values));
    f(Index<kLow>{}, Vec{_mm256_castsi256_ps(_mm256_slli_epi32(words, 16))});
    f(Index<kLow + 2>{}, Vec{_mm256_castsi256_ps(_mm256_and_si256(
                             words, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))});
  }

  template <class F>
  static const uint8_t* column(uint64_t mask, const uint8_t* values, F&& f) {
    rows<0, 0>(mask, values, f);
    rows<1, 1>(mask, values, f);
    rows<2, 4>(mask, values, f);
    rows<3, 5>(mask, values, f);
    return values + 2 * __builtin_popcountll(mask);
  }
};

}  // namespace

const Kernels kAvx2Kernels = {.f16 = multiply<F16>, .bf16 = multiply<Bf16>};

}  // namespace sparsellm::panels
