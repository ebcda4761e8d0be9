#pragma once

#include <cstdint>
#include <limits>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// Logit biases and penalties (SamplingParams in engine/sampler.h says what they mean) on a CUDA
// device, for rows that have some. What they take for each row is a list of the tokens that they
// concern, and not a number for each id of the vocabulary.

inline constexpr int32_t kNotSeen = -1;

struct LogitAdjustment {
  int32_t token = -1;        // -1: none, passed over
  int32_t count = kNotSeen;  // times in the continuation; kNotSeen: nor does the prompt have it
  float bias = 0.0f;         // finite or -infinity

  friend bool operator==(const LogitAdjustment&, const LogitAdjustment&) = default;
};
inline constexpr int64_t kLogitAdjustmentWords = sizeof(LogitAdjustment) / sizeof(int32_t);

struct Penalties {
  float repetition = 1.0f;
  float frequency = 0.0f;
  float presence = 0.0f;

  friend bool operator==(const Penalties&, const Penalties&) = default;
};

struct AdjustedRow {
  int32_t row = 0;    // of logits
  int32_t last = 0;   // where the latest token of its sequence stands in `tokens`
  int32_t first = 0;  // of its adjustments
  int32_t count = 0;  // at least 1; the last one is room for the latest token
  Penalties penalties = {};
  int32_t generated = 0;  // 1: the latest token is one of the continuation; 0: of the prompt

  friend bool operator==(const AdjustedRow&, const AdjustedRow&) = default;
};
inline constexpr int64_t kAdjustedRowWords = sizeof(AdjustedRow) / sizeof(int32_t);

// A row's adjustments, with the room for its latest token.
inline constexpr int64_t kMaxRowAdjustments = 8192;

// The bits of the NaN that stands for the logit of a token with the bias -infinity, which is never
// chosen: with them it differs from an infinity or a NaN of the model's. No f16 or bf16 becomes
// this NaN, nor does arithmetic make it.
inline constexpr uint32_t kForbiddenLogit = 0xffc0deadu;

// A finite logit with bias and penalties, which stays finite unless the bias is -infinity: at the
// largest float where one is exceeded. Every sum and product is in double, and of two factors or
// terms one is a float or a small whole number: with or without fused operations it is the same.
constexpr float adjusted_logit(float logit, int32_t count, float bias, const Penalties& penalties) {
  const auto to_logit = [](double value) {
    constexpr double kLargest = std::numeric_limits<float>::max();
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (value < -kLargest && value > -kInfinity) {
      value = -kLargest;
    } else if (value > kLargest && value < kInfinity) {
      value = kLargest;
    }
    return static_cast<float>(value);
  };
  if (bias != 0.0f) {
    logit = to_logit(static_cast<double>(logit) + static_cast<double>(bias));
  }
  if (count != kNotSeen && penalties.repetition != 1.0f) {
    const double penalty = penalties.repetition;
    logit = to_logit(logit > 0.0f ? static_cast<double>(logit) / penalty
                                  : static_cast<double>(logit) * penalty);
  }
  if (count > 0 && (penalties.frequency != 0.0f || penalties.presence != 0.0f)) {
    const double lost =
        static_cast<double>(penalties.frequency) * count + static_cast<double>(penalties.presence);
    logit = to_logit(static_cast<double>(logit) - lost);
  }
  return logit;
}

// In place: each row's adjustments, and its latest token, which counts once more than they say. So
// a token that the step before has chosen need not be known on the host.
//   rows         i32 [n, kAdjustedRowWords]: AdjustedRows, each of another row of logits
//   tokens       i32 [t], ids in the vocabulary
//   adjustments  i32 [m, kLogitAdjustmentWords]: LogitAdjustments, no token twice in a row. On
//                return the last one of a row is the latest token, if no other one is, and `bias`
//                is the logit as it was.
//   logits       f32 [k, vocabulary], contiguous: the rows first_row, first_row + 1, ...
// A logit is adjusted_logit(), or kForbiddenLogit where that is -infinity; one that is NaN or
// infinite stays. What lies in `rows`, `tokens` and `adjustments` is not checked. On CUDA only,
// where it enqueues one kernel and uses no workspace.
void adjust_logits(const Tensor& rows, const Tensor& tokens, Tensor adjustments, int64_t first_row,
                   Tensor logits, ExecContext& ctx);

// Makes the logits what they were before adjust_logits(), from what that has left in
// `adjustments`.
void restore_logits(const Tensor& rows, const Tensor& adjustments, int64_t first_row, Tensor logits,
                    ExecContext& ctx);

}  // namespace sparsellm
