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

}  // namespace sparsellm
