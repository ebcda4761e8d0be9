#pragma once

// Values of matrices in kernels that may be compiled without CUDA's headers: halves are their bits,
// which instructions of PTX convert.
namespace sparsellm::general_sparse {

struct DeviceF16 {
  unsigned short bits;
};
struct DeviceBf16 {
  unsigned short bits;
};

__device__ inline float as_float(float x) { return x; }
__device__ inline void round_to(float x, float& result) { result = x; }

#ifdef __CUDACC__  // tests on the host have their own
__device__ inline float as_float(DeviceF16 x) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
}
__device__ inline void round_to(float x, DeviceF16& result) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
}

__device__ inline float as_float(DeviceBf16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}
__device__ inline void round_to(float x, DeviceBf16& result) {
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
}
#endif

// `kCount` consecutive elements, a power of 2, in as few accesses as there can be: of up to 16
// bytes. The address is aligned to one of them.
template <class T, int kCount>
inline constexpr int kPackAlignment = static_cast<int>(sizeof(T)) * kCount < 16
                                          ? static_cast<int>(sizeof(T)) * kCount
                                          : 16;
template <class T, int kCount>
struct alignas(kPackAlignment<T, kCount>) Pack {
  T elements[kCount];
};

// Pack number `i` of an array of them.
template <class Pack>
__device__ inline Pack load_pack(const void* packs, unsigned i) {
  return static_cast<const Pack*>(packs)[i];
}

}  // namespace sparsellm::general_sparse
