#pragma once

#include <cstdint>

#include "kernels/base/neuron_counters.h"
#include "kernels/base/warp.cuh"

namespace sparsellm {

// A NeuronTally as a kernel takes it.
struct TallyRows {
  NeuronCounters* counters;
  const int32_t* positions;
  const uint8_t* active;
  int64_t active_stride;

  // Of tokens [first, first + count).
  TallyRows(const NeuronTally& tally, int64_t first, int64_t count)
      : counters(tally.counters),
        positions(tally.positions.empty() ? nullptr : tally.positions.data<int32_t>() + first),
        active(tally.active.empty()
                   ? nullptr
                   : static_cast<const uint8_t*>(tally.active.rows(first, count).raw())),
        active_stride(tally.active.row_stride()) {}

  __device__ bool counts(int64_t token) const {
    return positions == nullptr || positions[token] >= 0;
  }
  __device__ bool skips(int64_t token, int64_t neuron) const {
    return active != nullptr && active[token * active_stride + neuron] == 0;
  }
};

// By all threads of a block, of one dimension, each with its own numbers (less than 2^19, so that
// their sums are exact): one addition for each counter.
__device__ inline void add_to_counters(NeuronCounters* counters, int rows, int skipped,
                                       int active) {
  constexpr int kCounters = 3;
  static_assert(sizeof(NeuronCounters) == kCounters * sizeof(unsigned long long));
  __shared__ int sums[kCounters];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kCounters) {
    sums[thread] = 0;
  }
  __syncthreads();
  const int own[kCounters] = {rows, skipped, active};
#pragma unroll
  for (int i = 0; i < kCounters; ++i) {
    const int sum = static_cast<int>(warp_sum(static_cast<float>(own[i])));
    if (thread % kWarpSize == 0 && sum != 0) {
      atomicAdd(&sums[i], sum);
    }
  }
  __syncthreads();
  if (thread < kCounters && sums[thread] != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(counters) + thread,
              static_cast<unsigned long long>(sums[thread]));
  }
}

}  // namespace sparsellm
