#pragma once

#include <cuda_runtime.h>

namespace sparsellm {

inline constexpr int kWarpSize = 32;

// Over the 32 lanes; every lane gets the result. The order of the additions is fixed.
__device__ inline float warp_sum(float x) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, distance);
  }
  return x;
}

// The warp of a thread in its block (of one dimension), taken from one lane: so the compiler sees
// that it is the same in all, and keeps what follows from it in uniform registers.
__device__ inline int uniform_warp() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
}

}  // namespace sparsellm
