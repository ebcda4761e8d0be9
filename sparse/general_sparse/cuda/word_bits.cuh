#pragma once

#include <cstdint>

namespace sparsellm::general_sparse {

// What instructions of a GPU say of a word, for the `Bits` of row_counts.cuh and
// ordered_entries.cuh. std::countr_zero() and its like compile to nothing in device code. Tests
// have a class of these functions on the host.
struct WordBits {
  // The lowest and the highest bit that is set; there is one.
  static __device__ int first(uint64_t word) { return __ffsll(static_cast<long long>(word)) - 1; }
  static __device__ int last(uint64_t word) { return 63 - __clzll(static_cast<long long>(word)); }
  static __device__ int count(uint64_t word) { return __popcll(word); }
};

}  // namespace sparsellm::general_sparse
