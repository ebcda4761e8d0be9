// Votes counted in plain C++, which the compiler turns into what the build's -march allows.

#include <bit>
#include <cstdint>
#include <cstring>

#include "sparse/activation/cpu/vote_kernels.h"

namespace sparsellm::vote_kernels {
namespace {

struct Vec {
  static constexpr int64_t kWords = 2;
  uint64_t v;

  static Vec load(const uint32_t* p) {
    Vec result;
    std::memcpy(&result.v, p, sizeof(result.v));
    return result;
  }
  static Vec load_partial(const uint32_t* p, int64_t) { return {*p}; }  // one is left
};
inline Vec operator&(Vec a, Vec b) { return {a.v & b.v}; }
inline Vec operator^(Vec a, Vec b) { return {a.v ^ b.v}; }

template <int kPlanes>
struct Counter {
  int32_t votes;

  static Counter zero() { return {0}; }
  void add(Vec bits, const Vec (&planes)[kPlanes]) {
    for (int b = 0; b < kPlanes; ++b) {
      votes += std::popcount((bits & planes[b]).v) << b;
    }
  }
  int32_t sum() const { return votes; }
};

#include "sparse/activation/cpu/count_votes.inc.h"

}  // namespace

const CountVotes kCountPortable = count;

}  // namespace sparsellm::vote_kernels
