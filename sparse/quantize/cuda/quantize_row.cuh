#pragma once

#include <cstdint>

#include "sparse/quantize/cuda/scale_trials.cuh"

namespace sparsellm::quantization {

// A block for a row that shares a scale: eight lanes for each trial.
template <class Values>
struct RowBlock {
  static constexpr int kWarps = (Values::kTrials + kTrialsOfWarp - 1) / kTrialsOfWarp;
  static constexpr int kThreads = kWarps * kWarpLanes;
  static constexpr int kSteps = 4;  // columns of a lane in a piece
  static constexpr int kPiece = kThreads * kSteps;

  // A row is read in pieces, so that it may have any length.
  struct Shared {
    Extremes extremes[kWarps];
    BestTrial best[kWarps];
    int counts[kWarps];
    float scaled[kPiece];      // nonzeros of a piece in their order
    double errors[2][kPiece];  // squared, of a piece, with the plain scale and with the other one
    double sums[2];
  };
};

template <class T>
__device__ inline Extremes extremes_of_row(const DenseSource& w, int64_t row, int threads) {
  Extremes own{};
  for (int64_t column = threadIdx.x; column < w.columns; column += threads) {
    const float weight = number_of(weight_at<T>(w, row, column));
    own.add({weight, weight});
  }
  return own.of_warp();
}

// The scale that the search finds. Warp i of the block has trials 4 i to 4 i + 3.
template <class Values, class T>
__device__ inline float search_row(const DenseSource& w, int64_t row, const ScaleTrials& trials,
                                   float largest, typename RowBlock<Values>::Shared& shared) {
  using Block = RowBlock<Values>;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const unsigned sum_lane = threadIdx.x % kSumLanes;
  const SearchUnit unit(largest);
  const float scaled_largest = __double2float_rn(__dmul_rn(largest, unit.inverse));
  Trial<Values> trial(trials, static_cast<int>(threadIdx.x) / kSumLanes, scaled_largest);
  unsigned before_piece = 0;  // nonzeros
  for (int64_t begin = 0; begin < w.columns; begin += Block::kPiece) {
    const int64_t first = begin + warp * (Block::kSteps * kWarpLanes) + lane;
    float weights[Block::kSteps];
    unsigned masks[Block::kSteps];
    int count = 0;
#pragma unroll
    for (int step = 0; step < Block::kSteps; ++step) {
      const int64_t column = first + step * kWarpLanes;
      weights[step] = column < w.columns ? number_of(weight_at<T>(w, row, column)) : 0.0f;
      masks[step] = __ballot_sync(kAllLanes, weights[step] != 0.0f);
      count += __popc(masks[step]);
    }
    if (lane == 0) {
      shared.counts[warp] = count;
    }
    __syncthreads();  // the counts are there, and the piece before is done with
    int place = 0;
    int all = 0;
    for (int i = 0; i < Block::kWarps; ++i) {
      place += i < warp ? shared.counts[i] : 0;
      all += shared.counts[i];
    }
#pragma unroll
    for (int step = 0; step < Block::kSteps; ++step) {
      if (weights[step] != 0.0f) {
        shared.scaled[place + __popc(masks[step] & ((1u << lane) - 1))] =
            unit.template scaled<Values>(weights[step]);
      }
      place += __popc(masks[step]);
    }
    __syncthreads();
    for (int i = static_cast<int>((sum_lane - before_piece) % kSumLanes); i < all; i += kSumLanes) {
      trial.add(shared.scaled[i]);
    }
    before_piece += static_cast<unsigned>(all);
  }
  const BestTrial of_warp = trial.result().of_warp();
  if (lane == 0) {
    shared.best[warp] = of_warp;
  }
  __syncthreads();
  BestTrial best = BestTrial::none();
  for (int i = 0; i < Block::kWarps; ++i) {
    best.add(shared.best[i]);
  }
  return searched_scale<Values>(best, scaled_largest, unit);
}

// Whether the sum of squared errors is less with the other scale than with the plain one. A thread
// adds up each, in the order of the columns; zeros add nothing.
template <class Values, class T>
__device__ inline bool is_better_for_row(const DenseSource& w, int64_t row, float other,
                                         float plain, typename RowBlock<Values>::Shared& shared) {
  using Block = RowBlock<Values>;
  const int summed = static_cast<int>(threadIdx.x) / kWarpLanes;  // if it is 0 or 1
  const bool sums = threadIdx.x % kWarpLanes == 0 && summed < 2;
  double sum = 0.0;
  for (int64_t begin = 0; begin < w.columns; begin += Block::kPiece) {
    const int64_t left = w.columns - begin;
    const int count = left < Block::kPiece ? static_cast<int>(left) : Block::kPiece;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += Block::kThreads) {
      const float weight = number_of(weight_at<T>(w, row, begin + i));
      shared.errors[0][i] = squared_error<Values>(weight, plain);
      shared.errors[1][i] = squared_error<Values>(weight, other);
    }
    __syncthreads();
    if (sums) {
      const double* const errors = shared.errors[summed];
#pragma unroll 8
      for (int i = 0; i < count; ++i) {
        sum = __dadd_rn(sum, errors[i]);
      }
    }
    __syncthreads();
  }
  if (sums) {
    shared.sums[summed] = sum;
  }
  __syncthreads();
  return shared.sums[1] < shared.sums[0];
}

// Row blockIdx.x of a finite matrix, as quantize() has it. A block of RowBlock<Values>::kThreads.
//   codes   [w.rows, w.columns]
//   scales  [w.rows]
template <class Values, class T>
__device__ inline void quantize_row(const DenseSource& w, const ScaleTrials& trials, int8_t* codes,
                                    float* scales) {
  using Block = RowBlock<Values>;
  static_assert(Block::kWarps >= 2, "a warp for each of two sums");
  __shared__ typename Block::Shared shared;
  const int64_t row = blockIdx.x;
  const Extremes of_warp = extremes_of_row<T>(w, row, Block::kThreads);
  if (threadIdx.x % kWarpLanes == 0) {
    shared.extremes[threadIdx.x / kWarpLanes] = of_warp;
  }
  __syncthreads();
  Extremes extremes{};
  for (int i = 0; i < Block::kWarps; ++i) {
    extremes.add(shared.extremes[i]);
  }

  float scale = 1.0f;
  const float largest = extremes.largest();
  if (largest != 0.0f) {  // the same in all threads, like what follows
    constexpr double kLimit = infinite_from(T{});
    scale = plain_scale<Values>(extremes, kLimit);
    const float other = search_row<Values, T>(w, row, trials, largest, shared);
    if (stays_below<Values>(extremes, other, kLimit) &&
        is_better_for_row<Values, T>(w, row, other, scale, shared)) {
      scale = other;
    }
  }
  int8_t* const own = codes + row * w.columns;
  for (int64_t column = threadIdx.x; column < w.columns; column += Block::kThreads) {
    own[column] = code_at<Values>(number_of(weight_at<T>(w, row, column)), scale);
  }
  if (threadIdx.x == 0) {
    scales[row] = scale;
  }
}

}  // namespace sparsellm::quantization
