#include <cuda_fp8.h>

#include <algorithm>

#include "kernels/base/launch.cuh"
#include "kernels/device/cuda_types.cuh"
#include "tools/bench/fp8_rounding.h"

namespace sparsellm {
namespace {

constexpr int kFp8Threads = 256;
constexpr int64_t kMaxFp8Blocks = 4096;

template <class T>
__device__ __nv_fp8_storage_t fp8_of(T x) {
  return __nv_cvt_float_to_fp8(f32_of(x) * (1.0f / kFp8Scale), __NV_SATFINITE, __NV_E4M3);
}

// In both a thread takes the elements of its index and every gridDim.x * kFp8Threads-th after it.
template <class T>
__global__ void __launch_bounds__(kFp8Threads) round_to_fp8_kernel(T* x, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kFp8Threads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kFp8Threads + threadIdx.x; i < count;
       i += stride) {
    const __half number(__nv_cvt_fp8_to_halfraw(fp8_of(x[i]), __NV_E4M3));
    x[i] = from_f32<T>(f32_of(number) * kFp8Scale);
  }
}

template <class T>
__global__ void __launch_bounds__(kFp8Threads)
    encode_fp8_kernel(const T* x, int64_t count, __nv_fp8_storage_t* codes) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kFp8Threads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kFp8Threads + threadIdx.x; i < count;
       i += stride) {
    codes[i] = fp8_of(x[i]);
  }
}

LaunchShape fp8_shape(int64_t count) {
  return {.blocks = static_cast<unsigned>(
              std::min<int64_t>((count + kFp8Threads - 1) / kFp8Threads, kMaxFp8Blocks)),
          .threads = kFp8Threads};
}

void check_fp8_operand(const Tensor& x) {
  require(x.contiguous() && x.element_count() > 0, "FP8 of a tensor {}", x.shape_string());
}

}  // namespace

void round_to_fp8_cuda(const Tensor& x, ExecContext& ctx) {
  check_fp8_operand(x);
  visit_activation(x.dtype(), [&]<class T>(T) {
    launch(ctx, round_to_fp8_kernel<T>, fp8_shape(x.element_count()), static_cast<T*>(x.raw()),
           x.element_count());
  });
}

void encode_fp8_cuda(const Tensor& x, const Tensor& codes, ExecContext& ctx) {
  check_fp8_operand(x);
  require(codes.contiguous() && codes.dtype() == DType::u8 &&
              codes.element_count() == x.element_count(),
          "the codes of a tensor {} are {} {}", x.shape_string(), name_of(codes.dtype()),
          codes.shape_string());
  visit_activation(x.dtype(), [&]<class T>(T) {
    launch(ctx, encode_fp8_kernel<T>, fp8_shape(x.element_count()), static_cast<const T*>(x.raw()),
           x.element_count(), codes.data<uint8_t>());
  });
}

}  // namespace sparsellm
