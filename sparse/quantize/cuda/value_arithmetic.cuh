#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"
#include "sparse/quantize/scale_search.h"

// What code_values.h computes, the same bits, on a CUDA device: operation by operation, since nvcc
// makes one of a product and a sum of operators.
namespace sparsellm::quantization {

// A finite weight; every one is a number of f32.
__device__ inline float number_of(Half weight) {
  const uint32_t bits = weight.bits;
  const float magnitude = __fmul_rn(__uint_as_float((bits & 0x7fffu) << 13), 0x1p112f);
  return __uint_as_float((bits & 0x8000u) << 16 | __float_as_uint(magnitude));
}
__device__ inline float number_of(BFloat16 weight) {
  return __uint_as_float(static_cast<uint32_t>(weight.bits) << 16);
}

// The f16 nearest to a number in [2^-24, 65504], as to_half() has it.
__device__ inline uint32_t half_of(float number) {
  const uint32_t bits = __float_as_uint(number);
  return bits < 0x38800000u ? __float_as_uint(__fadd_rn(number, 0.5f)) - 0x3f000000u
                            : (bits + 0xfffu + (bits >> 13 & 1u) - 0x38000000u) >> 13;
}

struct DeviceFloatScales {
  __device__ static float scale_of(double scale) {
    constexpr double kLeast = 0x1p-149;
    constexpr double kMost = 0x1.fffffep127;
    return __double2float_rn(scale < kLeast ? kLeast : scale > kMost ? kMost : scale);
  }
  __device__ static float scale_below(float scale) {
    const uint32_t bits = __float_as_uint(scale);
    return __uint_as_float(bits > 1 ? bits - 1 : 1);
  }
};

struct DeviceHalfScales {
  __device__ static float scale_of(double scale) {
    constexpr double kLeast = 0x1p-24;
    constexpr double kMost = 65504.0;
    return scale_with(half_of(__double2float_rn(scale < kLeast  ? kLeast
                                                : scale > kMost ? kMost
                                                                : scale)));
  }
  __device__ static float scale_below(float scale) {
    const uint32_t bits = half_of(scale);
    return scale_with(bits > 1 ? bits - 1 : 1);
  }

 private:
  __device__ static float scale_with(uint32_t bits) {
    return number_of(Half{static_cast<uint16_t>(bits)});
  }
};

template <int kLow, int kHigh>
struct DeviceIntegers {
  __device__ static double nearest(double x) {
    constexpr double kLeast = kLow;
    constexpr double kMost = kHigh;
    return rint(x < kLeast ? kLeast : x > kMost ? kMost : x);
  }
  __device__ static float nearest(float x) {
    return rintf(fminf(fmaxf(x, static_cast<float>(kLow)), static_cast<float>(kHigh)));
  }
  __device__ static int8_t code_of(double number) {
    return static_cast<int8_t>(static_cast<int>(number));
  }
};

struct DeviceI8 : I8Search, DeviceIntegers<-127, 127>, DeviceFloatScales {};

struct DeviceI4 : I4Search, DeviceIntegers<-8, 7>, DeviceHalfScales {};

struct DeviceF8 : F8Search, DeviceFloatScales {
  __device__ static double nearest(double x) {
    constexpr int kFractionBits = 52;
    constexpr long long kLeastExponent = 1023 - 6;
    const double magnitude = fmin(fabs(x), kLargest);
    const long long biased = __double_as_longlong(magnitude) >> kFractionBits;
    const long long exponent = biased > kLeastExponent ? biased : kLeastExponent;
    const double step = __longlong_as_double((exponent - 3) << kFractionBits);
    // The step is a power of two: the product is what a division gives.
    const double inverse = __longlong_as_double((2046 - (exponent - 3)) << kFractionBits);
    return copysign(__dmul_rn(rint(__dmul_rn(magnitude, inverse)), step), x);
  }
  // Of magnitudes.
  __device__ static float nearest(float x) {
    const float all = fminf(x, static_cast<float>(kLargest));
    const float normal = all <= 0x1.fffffep-7f ? 0.0f : all;
    const float product = __fmul_rn(normal, 0x1.00001p20f);
    const float leading = __fsub_rn(product, __fsub_rn(product, normal));
    constexpr float kLarge = 0x1.8p14f;
    const float subnormal = __fsub_rn(all, normal);
    return __fadd_rn(leading, __fsub_rn(__fadd_rn(subnormal, kLarge), kLarge));
  }
  __device__ static int8_t code_of(double number) {
    const double positive = fabs(number);
    const uint32_t bits = __float_as_uint(__double2float_rn(positive));
    const uint32_t subnormal = static_cast<uint32_t>(__dmul_rn(positive, 0x1p9));
    const uint32_t normal = (bits >> 20) - ((127 - 7) << 3);
    const uint32_t magnitude = subnormal < 8 ? subnormal : normal;
    const uint32_t sign = number < 0.0 ? 0x80 : 0;
    return static_cast<int8_t>(static_cast<uint8_t>(sign | magnitude));
  }
};

}  // namespace sparsellm::quantization
