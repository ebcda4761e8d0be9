#pragma once

#include <bit>
#include <cstdint>

namespace sparsellm::general_sparse {

// What instructions of a CPU say of a word, for the `Bits` of bits/row_counts.h. On a CUDA device
// these functions are those of cuda/word_bits.cuh.
struct HostWordBits {
  // The lowest and the highest bit that is set; there is one.
  static constexpr int first(uint64_t word) { return std::countr_zero(word); }
  static constexpr int last(uint64_t word) { return 63 - std::countl_zero(word); }
  static constexpr int count(uint64_t word) { return std::popcount(word); }
};

}  // namespace sparsellm::general_sparse
