#pragma once

#include <bit>
#include <cstdint>

// Lets the host compile the device code of the encoder that calls nothing of CUDA.
#define __device__
#include "sparse/general_sparse/cuda/lane_writer.cuh"
#include "sparse/general_sparse/cuda/ordered_entries.cuh"
#include "sparse/general_sparse/cuda/row_bits.cuh"
#include "sparse/general_sparse/cuda/row_counts.cuh"
#undef __device__

namespace sparsellm::testing {

// Stands for general_sparse::WordBits.
struct HostWordBits {
  static int first(uint64_t word) { return std::countr_zero(word); }
  static int last(uint64_t word) { return 63 - std::countl_zero(word); }
  static int count(uint64_t word) { return std::popcount(word); }
};

}  // namespace sparsellm::testing
