// What the files of AVX-512 share; included before count_votes.inc.h, and as it is.

struct Vec {
  static constexpr int64_t kWords = 16;
  __m512i v;

  static Vec load(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
  static Vec load_partial(const uint32_t* p, int64_t count) {
    return {_mm512_maskz_loadu_epi32(static_cast<__mmask16>((1U << count) - 1), p)};
  }
};
inline Vec operator&(Vec a, Vec b) { return {_mm512_and_si512(a.v, b.v)}; }
inline Vec operator^(Vec a, Vec b) { return {_mm512_xor_si512(a.v, b.v)}; }
