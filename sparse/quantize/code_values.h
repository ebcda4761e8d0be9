#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/base/dtype.h"
#include "kernels/base/simd.h"
#include "sparse/quantize/scale_search.h"

// The numbers that the codes of each type stand for, as what rounding needs to know of them. A
// class of these has
//   kLargest            the largest number; scaling by the largest magnitude maps that to it
//   kSymmetric          whether -x rounds to the negative of what x rounds to
//   kTrials, trial(i)   numbers that the search maps the largest magnitude to, one after the other;
//                       those above kLargest clip it
//   nearest(double)     the nearest of the numbers, ties to even
//   nearest(F32x8)      the same for the search: of magnitudes alone where the type is symmetric,
//                       and ties may go either way
//   code_of(double)     the code of one of the numbers; of zeros 0
//   scale_of(double)    the nearest scale that can be stored and is not 0
//   scale_below(float)  the next lower scale that can be stored
namespace sparsellm::quantization {

// Scales of f32.
struct FloatScales {
  static float scale_of(double scale) {
    return static_cast<float>(std::clamp<double>(scale, std::numeric_limits<float>::denorm_min(),
                                                 std::numeric_limits<float>::max()));
  }
  static float scale_below(float scale) {
    return std::max(std::nextafter(scale, 0.0f), std::numeric_limits<float>::denorm_min());
  }
};

// Scales of f16.
struct HalfScales {
  static float scale_of(double scale) {
    return to_float(to_half(static_cast<float>(std::clamp(scale, 0x1p-24, 65504.0))));
  }
  static float scale_below(float scale) {
    const int bits = to_half(scale).bits;
    return to_float(Half{static_cast<uint16_t>(std::max(bits - 1, 1))});
  }
};

template <int kLow, int kHigh>
struct Integers {
  static double nearest(double x) { return std::rint(std::clamp<double>(x, kLow, kHigh)); }
  static F32x8 nearest(F32x8 x) { return round(min(max(x, F32x8::all(kLow)), F32x8::all(kHigh))); }
  static int8_t code_of(double number) { return static_cast<int8_t>(number); }
};

struct I8Values : I8Search, Integers<-127, 127>, FloatScales {};

// With -8 no error is larger than without it at the same scale, and those of normally distributed
// weights are 10 % smaller at their best scales.
struct I4Values : I4Search, Integers<-8, 7>, HalfScales {};

struct F8Values : F8Search, FloatScales {
  static double nearest(double x) {
    constexpr int kFractionBits = 52;
    constexpr uint64_t kLeastExponent = 1023 - 6;
    const double magnitude = std::min(std::fabs(x), kLargest);
    const uint64_t exponent =
        std::max(std::bit_cast<uint64_t>(magnitude) >> kFractionBits, kLeastExponent);
    const auto step = std::bit_cast<double>((exponent - 3) << kFractionBits);
    return std::copysign(std::rint(magnitude / step) * step, x);
  }
  static F32x8 nearest(F32x8 x) {
    const F32x8 all = min(x, F32x8::all(static_cast<float>(kLargest)));
    const F32x8 normal = keep_above(all, F32x8::all(0x1.fffffep-7f));
    // Four bits of a normal number: Veltkamp's splitting.
    const F32x8 product = normal * F32x8::all(0x1.00001p20f);
    const F32x8 leading = product - (product - normal);
    // Multiples of 2^-9 of a subnormal one: the last bit of the sum is as much.
    const F32x8 large = F32x8::all(0x1.8p14f);
    return leading + (((all - normal) + large) - large);
  }
  static int8_t code_of(double number) {
    const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(std::fabs(number)));
    const uint32_t subnormal = static_cast<uint32_t>(std::fabs(number) * 0x1p9);
    const uint32_t normal = (bits >> 20) - ((127 - 7) << 3);
    const uint32_t magnitude = subnormal < 8 ? subnormal : normal;
    const uint32_t sign = number < 0.0 ? 0x80 : 0;
    return static_cast<int8_t>(sign | magnitude);
  }
};

}  // namespace sparsellm::quantization
