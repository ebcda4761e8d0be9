#pragma once

#include <cstdint>

#include "kernels/base/pdl.cuh"
#include "sparse/activation/cuda/fused_down.cuh"
#include "sparse/activation/cuda/fused_list.cuh"
#include "sparse/activation/cuda/fused_neurons.cuh"
#include "sparse/activation/cuda/fused_parameters.cuh"
#include "sparse/activation/cuda/fused_votes.cuh"

// One launch for an MLP whose neurons are predicted (fused_mlp.h). All blocks run at once and wait
// for each other twice: for the words that say which neurons are active, and for those with h.
namespace sparsellm::fused {

// By all blocks, when each of them is done with its neurons.
__device__ inline void count_neurons(const FusedParameters& p, const FusedShared& shared) {
  const auto add = [](uint64_t& counter, uint32_t count) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&counter), count);
  };
  if (threadIdx.x == 0) {
    add(p.counters->skipped, shared.skipped);
    add(p.counters->active, shared.active);
  }
  if (blockIdx.x == 0 && threadIdx.x < p.shape.tokens &&
      (p.positions == nullptr || p.positions[threadIdx.x] >= 0)) {
    add(p.counters->rows, 1);
  }
}

// Before the other block of the pair knows that this one has started.
__device__ inline void make_barriers(const FusedParameters& p, const FusedBlock& b,
                                     FusedShared& shared) {
  if (threadIdx.x == 0) {
    barrier_init(shared_address(&shared.signs_there), 1);
    barrier_init(shared_address(&shared.exchange_there), 1);
    barriers_ready();
    if (b.half == 0) {
      barrier_expect(shared_address(&shared.exchange_there),
                     p.shape.tokens * p.shape.columns() * static_cast<int>(sizeof(float)));
    }
  }
  __syncwarp();
}

template <class T, int kKinds, int kTiles>
__global__ void __launch_bounds__(kThreads, 1)
    fused_mlp_kernel(const __grid_constant__ FusedParameters p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ FusedShared shared;
  const FusedBlock block(p.shape);
  const FusedVotes<T> votes(p, block, shared, memory);
  make_barriers(p, block, shared);
  cluster_started();
  votes.begin();
  __syncthreads();
  launch_dependents();
  wait_on_dependencies();
  if (threadIdx.x == 0) {
    shared.generation = *static_cast<const volatile uint64_t*>(p.generation) + 1;
  }
  if (p.gates == nullptr) {
    votes.read_x();
  }
  __syncthreads();
  const uint64_t generation = shared.generation;
  if (p.gates == nullptr) {
    votes.count();
    __syncthreads();
  }
  votes.publish(generation);
  __syncthreads();
  FusedNeurons<T, kKinds, kTiles> neurons(p, block, shared, memory);
  const FusedList list(p, block, shared, memory);
  list.read(generation);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *p.generation = generation;  // all blocks have read it: their words are there
  }
  FusedDown<T, kTiles> down(p, block, shared, list, memory);
  neurons.run([&] { down.begin(); });
  if (p.counters != nullptr) {
    __syncthreads();
    count_neurons(p, shared);
  }
  down.run();
#endif
}

using FusedKernel = void (*)(FusedParameters);

// One for each number of columns of a pair of blocks; nullptr if there is none.
constexpr int kFusedTiles[] = {8, 10, 14, 18};
template <class T>
FusedKernel fused_gated_kernel(int tiles);
template <class T>
FusedKernel fused_plain_kernel(int tiles);

}  // namespace sparsellm::fused
