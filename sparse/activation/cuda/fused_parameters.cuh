#pragma once

#include <cstdint>

#include "kernels/base/neuron_counters.h"
#include "kernels/base/warp.cuh"
#include "sparse/activation/cuda/fused_layout.h"

namespace sparsellm::fused {

constexpr int kWarp = kWarpSize;
constexpr int kThreads = kWarpsOfBlock * kWarp;
constexpr int kMostSquares = 128;

struct FusedParameters {
  FusedShape shape;
  FusedLayout at;
  const void* x;         // [tokens, in]
  int64_t x_stride;      // elements
  const int* positions;  // or null
  const uint32_t* signs;
  const void* gate;   // null where kinds is 1
  const void* gates;  // [tokens, neurons], computed before; null: neurons are predicted
  int64_t gates_stride;
  const void* up;
  const void* down;
  uint32_t gate_stride;  // bytes, these three
  uint32_t up_stride;
  uint32_t down_stride;
  const void* gate_bias;
  const void* up_bias;
  const void* down_bias;
  void* y;
  int64_t y_stride;
  float per_vector;  // 1 / vectors of x of a token
  int prefetched;    // units whose active rows a block fetches into the L2 ahead
  float alpha;
  float threshold;
  float least_up;      // what up is not below: 0 where it has a ReLU, else -infinity
  bool weighted;       // votes
  uint32_t per_block;  // 2^32 / blocks, rounded up
  bool counts_bits;    // votes are counted bit by bit, not by products
  bool whole_units;    // the list has all neurons of a unit, so that places follow from numbers
  // CudaQueue::tagged. What blocks tell each other are words with the number of the launch in them,
  // so that a word that is there is known to be of this launch, and nothing else is waited for.
  uint64_t* generation;
  // [token pairs, units]: generation << 32 | active neurons of a unit, 16 bits for each token.
  uint64_t* active;
  // [places, h_words]: generation << 32 | h of two tokens. Places are those of the list of all
  // active neurons, or with whole_units numbers of neurons.
  uint64_t* h;
  NeuronCounters* counters;  // or null
};

// What all threads of a block know.
struct FusedBlock {
  int warp;
  int lane;
  int group;  // lane / 4
  int quad;   // lane % 4
  int block;
  int units;       // of all blocks
  int first_unit;  // whose votes this block counts
  int own_units;
  int half;           // of the pair
  int first_of_half;  // unit
  int units_of_half;

  __device__ explicit FusedBlock(const FusedShape& s)
      : warp(uniform_warp()),
        lane(threadIdx.x % kWarp),
        group(lane / 4),
        quad(lane % 4),
        block(blockIdx.x),
        units(s.units()),
        first_unit(units * block / static_cast<int>(gridDim.x)),
        own_units(units * (block + 1) / static_cast<int>(gridDim.x) - first_unit),
        half(block % 2),
        first_of_half(units * half / 2),
        units_of_half(units * (half + 1) / 2 - first_of_half) {}
};

// Row `row` of a weight; strides in bytes.
template <class T>
__device__ const T* weight_row(const void* weight, uint32_t row, uint32_t stride) {
  return reinterpret_cast<const T*>(static_cast<const uint8_t*>(weight) + uint64_t{row} * stride);
}

struct FusedShared {
  uint16_t list[kMostShare];  // neurons of gate and up
  uint32_t active_of_warp[kWarpsOfBlock];
  uint64_t generation;
  uint32_t skipped;  // neurons of all rows, by this block; and how many were not zero
  uint32_t active;
  int count;                                             // of `list`
  int share_begin;                                       // its place in the list of all
  int half_start;                                        // active neurons before this block's half
  int half_count;                                        // and of it
  alignas(16) float squares[kMostTokens][kMostSquares];  // sums of 128 elements each
  float scales[kMostTokens];
  int total[kMostTokens];     // of |q|
  int balance[kMostTokens];   // of q
  int voteless[kMostTokens];  // not 0: all neurons are active
  alignas(8) uint64_t signs_there;
  alignas(8) uint64_t exchange_there;  // the sums of the other block of the pair
};
static_assert(sizeof(FusedShared) <= kStaticShared);

}  // namespace sparsellm::fused
