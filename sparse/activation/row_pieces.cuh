#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/base/tensor.h"
#include "kernels/base/warp.cuh"
#include "kernels/device/cuda_types.cuh"

// How the kernels of this folder read rows of f16 or bf16. A lane has the elements [8 * lane, + 8)
// of every 256, whether they are aligned or not: so the order of sums does not go by alignment.
namespace sparsellm {

inline constexpr int kPieceElements = 8;  // 16 bytes
inline constexpr int kTileElements = kPieceElements * kWarpSize;
// At most so many columns: places in a row are int.
inline constexpr int64_t kMaxRowElements = int64_t{1} << 30;

template <class T>
struct MatrixRows {
  const T* data;
  int64_t stride;
  bool aligned;  // all of them, to 16 bytes

  __device__ const T* row(int64_t index) const { return data + index * stride; }
};

template <class T>
MatrixRows<T> matrix_rows(const Tensor& x) {
  constexpr uintptr_t kBytes = kPieceElements * sizeof(T);
  const auto stride_bytes = static_cast<uintptr_t>(x.row_stride()) * sizeof(T);
  return {.data = static_cast<const T*>(x.raw()),
          .stride = x.row_stride(),
          .aligned = (reinterpret_cast<uintptr_t>(x.raw()) | stride_bytes) % kBytes == 0};
}

// Eight elements, of which the first `count` are there (all if it is more, none if it is not above
// 0); the others become zeros, and their memory is not read.
template <class T>
__device__ uint4 load_piece(const T* from, int count, bool aligned) {
  if (aligned && count >= kPieceElements) {
    return *reinterpret_cast<const uint4*>(from);
  }
  T elements[kPieceElements];
#pragma unroll
  for (int i = 0; i < kPieceElements; ++i) {
    elements[i] = i < count ? from[i] : from_f32<T>(0.0f);
  }
  uint4 piece;
  memcpy(&piece, elements, sizeof(piece));
  return piece;
}

template <class T>
__device__ void unpack_piece(const uint4& piece, float (&values)[kPieceElements]) {
  T elements[kPieceElements];
  memcpy(elements, &piece, sizeof(piece));
#pragma unroll
  for (int i = 0; i < kPieceElements; ++i) {
    values[i] = f32_of(elements[i]);
  }
}

// A bias of any floating dtype, or zeros.
struct BiasValues {
  const void* data;  // null: none
  DType dtype;

  explicit BiasValues(const Tensor& bias) : data(bias.raw()), dtype(bias.dtype()) {}

  __device__ float at(int64_t index) const {
    if (data == nullptr) {
      return 0.0f;
    }
    switch (dtype) {
      case DType::f16:
        return f32_of(static_cast<const __half*>(data)[index]);
      case DType::bf16:
        return f32_of(static_cast<const __nv_bfloat16*>(data)[index]);
      default:
        return static_cast<const float*>(data)[index];
    }
  }
};

}  // namespace sparsellm
