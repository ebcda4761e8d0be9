#pragma once

#include <cstdint>
#include <cuda/std/bit>

namespace sparsellm::general_sparse {

// What instructions of a GPU say of a word, for the `Bits` of bits/row_counts.h and
// ordered_entries.cuh. std::countr_zero() and its like compile to nothing in device code. On the
// host these functions are those of host/word_bits.h.
struct WordBits {
  // The lowest and the highest bit that is set; there is one.
  static constexpr int first(uint64_t word) { return cuda::std::countr_zero(word); }
  static constexpr int last(uint64_t word) { return 63 - cuda::std::countl_zero(word); }
  static constexpr int count(uint64_t word) { return cuda::std::popcount(word); }
};

}  // namespace sparsellm::general_sparse
