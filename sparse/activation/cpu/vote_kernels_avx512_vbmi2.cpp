// Votes counted by AVX-512 with VPOPCNTDQ, which every CPU with VBMI2 has.

#include <immintrin.h>

#include <cstdint>

#include "sparse/activation/cpu/vote_kernels.h"

namespace sparsellm::vote_kernels {
namespace {

#include "sparse/activation/cpu/vote_vector_avx512.inc.h"

template <int kPlanes>
struct Counter {
  __m512i votes[kPlanes];  // of each plane, 64 bits each

  static Counter zero() {
    Counter counter;
#pragma GCC unroll 4
    for (int b = 0; b < kPlanes; ++b) {
      counter.votes[b] = _mm512_setzero_si512();
    }
    return counter;
  }
  void add(Vec bits, const Vec (&planes)[kPlanes]) {
#pragma GCC unroll 4
    for (int b = 0; b < kPlanes; ++b) {
      votes[b] = _mm512_add_epi64(votes[b], _mm512_popcnt_epi64((bits & planes[b]).v));
    }
  }
  int32_t sum() const {
    __m512i all = votes[kPlanes - 1];
#pragma GCC unroll 4
    for (int b = kPlanes - 2; b >= 0; --b) {
      all = _mm512_add_epi64(_mm512_add_epi64(all, all), votes[b]);
    }
    return static_cast<int32_t>(_mm512_reduce_add_epi64(all));
  }
};

#include "sparse/activation/cpu/count_votes.inc.h"

}  // namespace

const CountVotes kCountAvx512Vbmi2 = count;

}  // namespace sparsellm::vote_kernels
