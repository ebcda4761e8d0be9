#pragma once

#include <cstdint>

#include "sparse/quantize/cuda/scale_trials.cuh"

namespace sparsellm::quantization {

constexpr int kGroupWarps = 4;  // of a block
constexpr int kGroupThreads = kGroupWarps * kWarpLanes;
constexpr int kMostOfGroup = 128;  // columns
constexpr int kGroupSteps = kMostOfGroup / kWarpLanes;

struct GroupShared {
  float scaled[kMostOfGroup];          // the nonzeros in their order
  double errors[2][kMostOfGroup + 1];  // squared; two lanes read them from different banks
};

// Whether the sum of squared errors is less with the other scale than with the plain one; the same
// in all lanes. A lane adds up each, in the order of the `count` columns; zeros add nothing.
template <class Values>
__device__ inline bool is_better_for_group(const float (&weights)[kGroupSteps], int count,
                                           float other, float plain, GroupShared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
#pragma unroll
  for (int step = 0; step < kGroupSteps; ++step) {
    const int column = step * kWarpLanes + lane;
    if (column < count) {
      shared.errors[0][column] = squared_error<Values>(weights[step], plain);
      shared.errors[1][column] = squared_error<Values>(weights[step], other);
    }
  }
  __syncwarp();
  double sum = 0.0;
  if (lane < 2) {
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
      sum = __dadd_rn(sum, shared.errors[lane][i]);
    }
  }
  return __shfl_sync(kAllLanes, sum, 1) < __shfl_sync(kAllLanes, sum, 0);
}

// A warp for a group of columns of i4 in a row of a finite matrix, as quantize() has it: group g of
// the row r is number r * groups + g of all. A block of kGroupThreads.
//   group   columns: 32, 64 or 128
//   codes   [w.rows, w.columns]
//   scales  [w.rows, groups]
template <class T>
__device__ inline void quantize_group(const DenseSource& w, int group, const ScaleTrials& trials,
                                      int8_t* codes, float* scales) {
  using Values = DeviceI4;
  __shared__ GroupShared of_warps[kGroupWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int64_t groups = (w.columns + group - 1) / group;
  const int64_t number = int64_t{blockIdx.x} * kGroupWarps + warp;
  if (number >= w.rows * groups) {
    return;
  }
  GroupShared& shared = of_warps[warp];
  const int64_t row = number / groups;
  const int64_t first = number % groups * group;
  const int64_t left = w.columns - first;
  const int count = left < group ? static_cast<int>(left) : group;

  float weights[kGroupSteps];
  Extremes extremes{};
#pragma unroll
  for (int step = 0; step < kGroupSteps; ++step) {
    const int column = step * kWarpLanes + lane;
    weights[step] = column < count ? number_of(weight_at<T>(w, row, first + column)) : 0.0f;
    extremes.add({weights[step], weights[step]});
  }
  extremes = extremes.of_warp();

  float scale = 1.0f;
  const float largest = extremes.largest();
  if (largest != 0.0f) {  // the same in all lanes, like what follows
    constexpr double kLimit = infinite_from(T{});
    scale = plain_scale<Values>(extremes, kLimit);
    const SearchUnit unit(largest);
    int nonzeros = 0;
#pragma unroll
    for (int step = 0; step < kGroupSteps; ++step) {
      const unsigned mask = __ballot_sync(kAllLanes, weights[step] != 0.0f);
      if (weights[step] != 0.0f) {
        shared.scaled[nonzeros + __popc(mask & ((1u << lane) - 1))] =
            unit.template scaled<Values>(weights[step]);
      }
      nonzeros += __popc(mask);
    }
    __syncwarp();
    const float scaled_largest = __double2float_rn(__dmul_rn(largest, unit.inverse));
    BestTrial best = BestTrial::none();
    for (int begin = 0; begin < Values::kTrials; begin += kTrialsOfWarp) {
      Trial<Values> trial(trials, begin + lane / kSumLanes, scaled_largest);
      for (int i = lane % kSumLanes; i < nonzeros; i += kSumLanes) {
        trial.add(shared.scaled[i]);
      }
      best.add(trial.result());
    }
    const float other = searched_scale<Values>(best.of_warp(), scaled_largest, unit);
    if (stays_below<Values>(extremes, other, kLimit) &&
        is_better_for_group<Values>(weights, count, other, scale, shared)) {
      scale = other;
    }
  }
#pragma unroll
  for (int step = 0; step < kGroupSteps; ++step) {
    const int column = step * kWarpLanes + lane;
    if (column < count) {
      codes[row * w.columns + first + column] = code_at<Values>(weights[step], scale);
    }
  }
  if (lane == 0) {
    scales[number] = scale;
  }
}

}  // namespace sparsellm::quantization
