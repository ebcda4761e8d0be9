#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/device/cuda_types.cuh"

// Two neighbours of f16 or bf16 in a register.
namespace sparsellm::tiled_csl {

template <class T>
using PairOf = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
template <class T>
__device__ PairOf<T> pair_of(float first, float second) {
  if constexpr (std::is_same_v<T, __half>) {
    return __floats2half2_rn(first, second);
  } else {
    return __floats2bfloat162_rn(first, second);
  }
}
// Of the two values, or `least` where they are less. NaN stays.
template <class T>
__device__ uint32_t bits_of_pair(float first, float second, float least) {
  const PairOf<T> v = __hmax2_nan(pair_of<T>(first, second), pair_of<T>(least, least));
  return reinterpret_cast<const uint32_t&>(v);
}

}  // namespace sparsellm::tiled_csl
