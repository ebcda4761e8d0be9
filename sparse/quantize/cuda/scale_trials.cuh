#pragma once

#include <cstdint>

#include "sparse/dense_source.cuh"
#include "sparse/quantize/cuda/value_arithmetic.cuh"

// The steps of quantize() that a row and a group of columns have in common, for the lanes of whole
// warps.
namespace sparsellm::quantization {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kWarpLanes = 32;
// Of the sums of a trial, those of F32x8: each has every eighth of the nonzeros.
constexpr int kSumLanes = 8;
constexpr int kTrialsOfWarp = kWarpLanes / kSumLanes;

constexpr int kMostTrials = 50;
static_assert(I8Search::kTrials <= kMostTrials && I4Search::kTrials <= kMostTrials &&
              F8Search::kTrials <= kMostTrials);

// trial() of a type, as the host computes it.
struct ScaleTrials {
  float of[kMostTrials];
};

template <class T>
__device__ inline T weight_at(const DenseSource& w, int64_t row, int64_t column) {
  return T{w.data[row * w.stride + column]};
}

// The lowest and the highest of some weights and 0; `{}` is of none.
struct Extremes {
  float lowest;
  float highest;

  __device__ void add(const Extremes& other) {
    lowest = fminf(lowest, other.lowest);
    highest = fmaxf(highest, other.highest);
  }
  __device__ Extremes of_warp() const {
    Extremes all = *this;
    for (int distance = kWarpLanes / 2; distance > 0; distance /= 2) {
      const float other_lowest = __shfl_xor_sync(kAllLanes, all.lowest, distance);
      const float other_highest = __shfl_xor_sync(kAllLanes, all.highest, distance);
      all.add({.lowest = other_lowest, .highest = other_highest});
    }
    return all;
  }
  __device__ float largest() const { return fmaxf(-lowest, highest); }
};

template <class Values>
__device__ inline bool stays_below(const Extremes& weights, float scale, double limit) {
  const double by = scale;
  return __dmul_rn(Values::nearest(__ddiv_rn(weights.highest, by)), by) < limit &&
         __dmul_rn(Values::nearest(__ddiv_rn(weights.lowest, by)), by) > -limit;
}

// That maps the largest magnitude to the largest number.
template <class Values>
__device__ inline float plain_scale(const Extremes& weights, double limit) {
  const float scale = Values::scale_of(__ddiv_rn(weights.largest(), Values::kLargest));
  return stays_below<Values>(weights, scale, limit) ? scale : Values::scale_below(scale);
}

template <class Values>
__device__ inline double squared_error(float weight, float scale) {
  const double exact = weight;
  const double by = scale;
  const double error = __dsub_rn(exact, __dmul_rn(Values::nearest(__ddiv_rn(exact, by)), by));
  return __dmul_rn(error, error);
}

template <class Values>
__device__ inline int8_t code_at(float weight, float scale) {
  return Values::code_of(Values::nearest(__ddiv_rn(weight, scale)));
}

// The power of two that weights are divided by for the search.
struct SearchUnit {
  double unit;
  double inverse;

  __device__ explicit SearchUnit(float largest) {
    constexpr long long kExponent = 0x7ff0000000000000;
    constexpr long long kOfInverse = 2046LL << 52;
    const long long exponent = __double_as_longlong(largest) & kExponent;
    unit = __longlong_as_double(exponent);
    inverse = __longlong_as_double(kOfInverse - exponent);
  }
  // The product is what a division by the unit gives.
  template <class Values>
  __device__ float scaled(float weight) const {
    const float x = __double2float_rn(__dmul_rn(weight, inverse));
    return Values::kSymmetric ? fabsf(x) : x;
  }
};

// The best of some trials. The first of them if several are as good.
struct BestTrial {
  static constexpr int kNone = 0x7fffffff;
  float error;
  float scale;
  int trial;

  __device__ static BestTrial none() {
    constexpr uint32_t kInfinity = 0x7f800000;
    return {.error = __uint_as_float(kInfinity), .scale = 0.0f, .trial = kNone};
  }

  __device__ void add(const BestTrial& other) {
    if (other.error < error || (other.error == error && other.trial < trial)) {
      *this = other;
    }
  }
  __device__ BestTrial of_warp() const {  // the lanes of a trial have the same
    BestTrial best = *this;
    for (int distance = kSumLanes; distance < kWarpLanes; distance *= 2) {
      const float other_error = __shfl_xor_sync(kAllLanes, best.error, distance);
      const float other_scale = __shfl_xor_sync(kAllLanes, best.scale, distance);
      const int other_trial = __shfl_xor_sync(kAllLanes, best.trial, distance);
      best.add({.error = other_error, .scale = other_scale, .trial = other_trial});
    }
    return best;
  }
};

// The sums of a trial over weights that are scaled to less than 2; a lane has those of every eighth
// weight.
template <class Values>
class Trial {
 public:
  // What lies beyond the trials is as one of them, and is not taken.
  __device__ Trial(const ScaleTrials& trials, int trial, float largest) {
    trial_ = trial;
    scale_ = __fdiv_rn(largest, trials.of[trial < Values::kTrials ? trial : 0]);
    inverse_ = __fdiv_rn(1.0f, scale_);
  }

  __device__ void add(float x) {
    const float q = Values::nearest(__fmul_rn(x, inverse_));
    const float r = __fmaf_rn(q, -scale_, x);
    rr_ = __fmaf_rn(r, r, rr_);
    qr_ = __fmaf_rn(q, r, qr_);
    qq_ = __fmaf_rn(q, q, qq_);
  }

  // Of all eight lanes, whole warps of which call it.
  __device__ BestTrial result() const {
    const float rr = sum_of_lanes(rr_);
    const float qr = sum_of_lanes(qr_);
    const float qq = sum_of_lanes(qq_);
    const float change = __fdiv_rn(qr, qq);
    BestTrial found = BestTrial::none();
    const float error = __fsub_rn(rr, __fmul_rn(qr, change));
    if (trial_ < Values::kTrials && error < found.error) {
      found = {.error = error, .scale = __fadd_rn(scale_, change), .trial = trial_};
    }
    return found;
  }

 private:
  // ((0+1)+(2+3)) + ((4+5)+(6+7))
  __device__ static float sum_of_lanes(float x) {
    for (int distance = 1; distance < kSumLanes; distance *= 2) {
      x = __fadd_rn(x, __shfl_xor_sync(kAllLanes, x, distance));
    }
    return x;
  }

  int trial_;
  float scale_;
  float inverse_;
  float rr_ = 0.0f;
  float qr_ = 0.0f;
  float qq_ = 0.0f;
};

// `best` of all trials; `largest` scaled as the weights were.
template <class Values>
__device__ inline float searched_scale(const BestTrial& best, float largest,
                                       const SearchUnit& unit) {
  const float scale = best.trial == BestTrial::kNone ? largest : best.scale;
  return Values::scale_of(__dmul_rn(unit.unit, scale));
}

}  // namespace sparsellm::quantization
