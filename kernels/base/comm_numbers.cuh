#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace sparsellm {

// What ranks add up, in f32: the kCount numbers of a vector of 16 bytes.
template <class T>
struct Numbers;

template <>
struct Numbers<float> {
  static constexpr int kCount = 4;
  __device__ static void unpack(const uint4& vector, float* to) {
    to[0] = __uint_as_float(vector.x);
    to[1] = __uint_as_float(vector.y);
    to[2] = __uint_as_float(vector.z);
    to[3] = __uint_as_float(vector.w);
  }
  __device__ static uint4 pack(const float* from) {
    return make_uint4(__float_as_uint(from[0]), __float_as_uint(from[1]), __float_as_uint(from[2]),
                      __float_as_uint(from[3]));
  }
};

// Pairs of 16 bits.
template <class Pair>
struct PairNumbers {
  static constexpr int kCount = 8;
  __device__ static void unpack(const uint4& vector, float* to) {
    unpack(vector.x, to);
    unpack(vector.y, to + 2);
    unpack(vector.z, to + 4);
    unpack(vector.w, to + 6);
  }
  __device__ static uint4 pack(const float* from) {
    return make_uint4(pack_pair(from), pack_pair(from + 2), pack_pair(from + 4),
                      pack_pair(from + 6));
  }

 private:
  __device__ static void unpack(unsigned word, float* to) {
    const float2 pair = Pair::to_floats(word);
    to[0] = pair.x;
    to[1] = pair.y;
  }
  __device__ static unsigned pack_pair(const float* from) {
    return Pair::from_floats(from[0], from[1]);
  }
};

struct HalfPair {
  __device__ static float2 to_floats(unsigned word) {
    return __half22float2(reinterpret_cast<const __half2&>(word));
  }
  __device__ static unsigned from_floats(float a, float b) {
    const __half2 pair = __floats2half2_rn(a, b);
    return reinterpret_cast<const unsigned&>(pair);
  }
};
template <>
struct Numbers<__half> : PairNumbers<HalfPair> {};

struct BFloat16Pair {
  __device__ static float2 to_floats(unsigned word) {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
  }
  __device__ static unsigned from_floats(float a, float b) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return reinterpret_cast<const unsigned&>(pair);
  }
};
template <>
struct Numbers<__nv_bfloat16> : PairNumbers<BFloat16Pair> {};

}  // namespace sparsellm
