#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/base/dtype.h"

// What quantize() takes of each type for its search of scales, and what its kernels on a CUDA
// device share with it. The host alone calls trial().
namespace sparsellm::quantization {

struct I8Search {
  static constexpr double kLargest = 127.0;
  static constexpr bool kSymmetric = true;
  static constexpr int kTrials = 24;
  static float trial(int i) { return static_cast<float>(110 + 2 * i); }
};

struct I4Search {
  static constexpr double kLargest = 7.0;
  static constexpr bool kSymmetric = false;
  // Where few weights are left in a group a large scale may fit all of them: 3 and 1 better than 7
  // and 2.
  static constexpr int kTrials = 50;
  static float trial(int i) { return static_cast<float>(10 + i) * 0.2f; }  // 2 to 11.8
};

struct F8Search {
  static constexpr double kLargest = 448.0;
  static constexpr bool kSymmetric = true;
  // All that matters is where in their octaves the weights lie, unless some are subnormal.
  static constexpr int kTrials = 33;
  static float trial(int i) { return 480.0f * std::exp2(static_cast<float>(-i) / 32.0f); }
};

// From here on numbers round to infinity.
constexpr double infinite_from(Half) { return 65520.0; }
constexpr double infinite_from(BFloat16) { return 0x1.ffp127; }
constexpr double infinite_from(float) { return 0x1.ffffffp127; }

// Throws the Error of a weight that is infinite or NaN.
[[noreturn]] inline void refuse_weight(int64_t row, int64_t column, float weight) {
  fail("the weight in row {}, column {} is {}; none can be quantised", row, column,
       std::isnan(weight) ? "NaN" : "infinite");
}

}  // namespace sparsellm::quantization
