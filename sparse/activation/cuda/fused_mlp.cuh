#pragma once

#include <cstdint>

#include "kernels/base/pdl.cuh"
#include "sparse/activation/cuda/fused_down.cuh"
#include "sparse/activation/cuda/fused_list.cuh"
#include "sparse/activation/cuda/fused_neurons.cuh"
#include "sparse/activation/cuda/fused_parameters.cuh"
#include "sparse/activation/cuda/fused_votes.cuh"

// One launch for an MLP whose neurons are predicted (fused_mlp.h). All blocks run at once and meet
// twice: by the words that say which neurons are active, and when all h are there.
namespace sparsellm::fused {

// Waits until as many blocks as there are have come here with all they wrote before.
__device__ inline void meet(const FusedParameters& p) {
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t arrived = 0;
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p.arrived) : "memory");
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                   : "=r"(arrived)
                   : "l"(p.arrived)
                   : "memory");
    } while (arrived < gridDim.x);
    // The last one leaves the counters as they were, and a generation later.
    if (atomicAdd(p.left, 1) == gridDim.x - 1) {
      *p.arrived = 0;
      *p.left = 0;
      ++*p.tagged;
    }
  }
  __syncthreads();
}

template <class T, int kKinds, int kTiles>
__global__ void __launch_bounds__(kThreads, 1)
    fused_mlp_kernel(const __grid_constant__ FusedParameters p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ FusedShared shared;
  const FusedBlock block(p.shape);
  const FusedVotes<T> votes(p, block, shared, memory);
  cluster_started();  // before the other block of the pair writes here
  votes.begin();
  __syncthreads();
  launch_dependents();
  wait_on_dependencies();
  const uint64_t generation = *static_cast<const volatile uint64_t*>(p.tagged) + 1;
  votes.read_x();
  __syncthreads();
  if (block.warp < kVoters) {
    votes.count();
  } else {
    votes.publish(generation);
  }
  __syncthreads();
  const FusedList list(p, block, shared, memory);
  list.read(generation);
  FusedDown<T, kTiles> down(p, block, list, memory);
  FusedNeurons<T, kKinds>(p, block, shared, memory).run([&] { down.begin(); });
  meet(p);
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
