#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <utility>

#include "kernels/base/dtype.h"
#include "kernels/base/error.h"

namespace sparsellm {

__device__ inline float f32_of(float x) { return x; }
__device__ inline float f32_of(__half x) { return __half2float(x); }
__device__ inline float f32_of(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
__device__ T from_f32(float x);
template <>
__device__ inline float from_f32<float>(float x) {
  return x;
}
template <>
__device__ inline __half from_f32<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 from_f32<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// kVector consecutive elements as one access; the address is aligned to all of them.
template <class T, int kVector>
struct alignas(sizeof(T) * kVector) Vector {
  T elements[kVector];
};
template <class T, int kVector>
__device__ void load_vector(const T* from, float (&to)[kVector]) {
  const auto vector = *reinterpret_cast<const Vector<T, kVector>*>(from);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    to[i] = f32_of(vector.elements[i]);
  }
}
template <class T, int kVector>
__device__ void store_vector(const float (&from)[kVector], T* to) {
  Vector<T, kVector> vector;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    vector.elements[i] = from_f32<T>(from[i]);
  }
  *reinterpret_cast<Vector<T, kVector>*>(to) = vector;
}

// Calls body with a value of the device type of an activation: __half or __nv_bfloat16.
template <class Body>
void visit_activation(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f16:
      return body(__half{});
    case DType::bf16:
      return body(__nv_bfloat16{});
    default:
      fail("activations on CUDA are f16 or bf16, not {}", name_of(dtype));
  }
}

// ... of any floating dtype.
template <class Body>
void visit_floating(DType dtype, Body&& body) {
  if (dtype == DType::f32) {
    return body(float{});
  }
  visit_activation(dtype, std::forward<Body>(body));
}

}  // namespace sparsellm
