// Votes counted by AVX2: a shuffle finds the bits of four in a table.

#include <immintrin.h>

#include <cstdint>

#include "sparse/activation/cpu/vote_kernels.h"

namespace sparsellm::vote_kernels {
namespace {

struct Vec {
  static constexpr int64_t kWords = 8;
  __m256i v;

  static Vec load(const uint32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
  }
  static Vec load_partial(const uint32_t* p, int64_t count) {
    alignas(32) uint32_t words[kWords];
    for (int64_t i = 0; i < kWords; ++i) {
      words[i] = i < count ? p[i] : 0;
    }
    return load(words);
  }
};
inline Vec operator&(Vec a, Vec b) { return {_mm256_and_si256(a.v, b.v)}; }
inline Vec operator^(Vec a, Vec b) { return {_mm256_xor_si256(a.v, b.v)}; }

template <int kPlanes>
struct Counter {
  __m256i votes;  // 64 bits each

  static Counter zero() { return {_mm256_setzero_si256()}; }
  void add(Vec bits, const Vec (&planes)[kPlanes]) {
    const __m256i table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,  //
                                           0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    const __m256i low = _mm256_set1_epi8(0xf);
    __m256i bytes = _mm256_setzero_si256();  // at most 8 * 15
#pragma GCC unroll 4
    for (int b = kPlanes - 1; b >= 0; --b) {
      const __m256i plane = (bits & planes[b]).v;
      bytes = _mm256_add_epi8(bytes, bytes);  // what the planes above count
      bytes = _mm256_add_epi8(bytes, _mm256_shuffle_epi8(table, _mm256_and_si256(plane, low)));
      const __m256i high = _mm256_and_si256(_mm256_srli_epi16(plane, 4), low);
      bytes = _mm256_add_epi8(bytes, _mm256_shuffle_epi8(table, high));
    }
    votes = _mm256_add_epi64(votes, _mm256_sad_epu8(bytes, _mm256_setzero_si256()));
  }
  int32_t sum() const {
    const __m128i two =
        _mm_add_epi64(_mm256_castsi256_si128(votes), _mm256_extracti128_si256(votes, 1));
    return static_cast<int32_t>(_mm_cvtsi128_si64(two) + _mm_extract_epi64(two, 1));
  }
};

#include "sparse/activation/cpu/count_votes.inc.h"

}  // namespace

const CountVotes kCountAvx2 = count;

}  // namespace sparsellm::vote_kernels
