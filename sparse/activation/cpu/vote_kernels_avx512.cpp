// Votes counted by AVX-512 F, BW, DQ and VL: as by AVX2, 512 bits at a time.

#include <immintrin.h>

#include <cstdint>

#include "sparse/activation/cpu/vote_kernels.h"

namespace sparsellm::vote_kernels {
namespace {

#include "sparse/activation/cpu/vote_vector_avx512.inc.h"

template <int kPlanes>
struct Counter {
  __m512i votes;  // 64 bits each

  static Counter zero() { return {_mm512_setzero_si512()}; }
  void add(Vec bits, const Vec (&planes)[kPlanes]) {
    const __m512i table =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
    const __m512i low = _mm512_set1_epi8(0xf);
    __m512i bytes = _mm512_setzero_si512();  // at most 8 * 15
#pragma GCC unroll 4
    for (int b = kPlanes - 1; b >= 0; --b) {
      const __m512i plane = (bits & planes[b]).v;
      bytes = _mm512_add_epi8(bytes, bytes);  // what the planes above count
      bytes = _mm512_add_epi8(bytes, _mm512_shuffle_epi8(table, _mm512_and_si512(plane, low)));
      const __m512i high = _mm512_and_si512(_mm512_srli_epi16(plane, 4), low);
      bytes = _mm512_add_epi8(bytes, _mm512_shuffle_epi8(table, high));
    }
    votes = _mm512_add_epi64(votes, _mm512_sad_epu8(bytes, _mm512_setzero_si512()));
  }
  int32_t sum() const { return static_cast<int32_t>(_mm512_reduce_add_epi64(votes)); }
};

#include "sparse/activation/cpu/count_votes.inc.h"

}  // namespace

const CountVotes kCountAvx512 = count;

}  // namespace sparsellm::vote_kernels
