// What the files of x86 share; included inside their unnamed namespaces.

struct One {
  static constexpr int kWidth = 1;
  __m128 v;

  static One all(const float* p) { return {_mm_load_ss(p)}; }
  static One load(const float* p) { return {_mm_load_ss(p)}; }
  void store(float* p) const { _mm_store_ss(p, v); }
};
inline One fma(One a, One b, One c) { return {_mm_fmadd_ss(a.v, b.v, c.v)}; }

struct F16 {
  using Value = uint16_t;
  static void one(const Value* from, float* to) {
    _mm_store_ss(to, _mm_cvtph_ps(_mm_cvtsi32_si128(from[0])));
  }
  static void eight(const Value* from, float* to) {
    _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
};

struct Bf16 {
  using Value = uint16_t;
  static void one(const Value* from, float* to) {
    _mm_store_ss(to, _mm_castsi128_ps(_mm_cvtsi32_si128(from[0] << 16)));
  }
  static void eight(const Value* from, float* to) {
    const __m256i wide =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    _mm256_storeu_ps(to, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
  }
};

struct F32 {
  using Value = float;
  static void one(const Value* from, float* to) { *to = *from; }
  static void eight(const Value* from, float* to) { _mm256_storeu_ps(to, _mm256_loadu_ps(from)); }
};
