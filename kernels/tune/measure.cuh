#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/cuda_context.h"
#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// The tools of tuning.

// Values of [-1, 1) that look random; x is contiguous, in a dtype of activations.
void fill_operand(const Tensor& x, ExecContext& ctx);

// What two right results may differ by, in parts of the largest element: each is rounded to y.
double rounding_tolerance(DType y);

// Compares matrices of one shape and dtype on the device.
class Comparison {
 public:
  explicit Comparison(ExecContext& ctx);

  // Takes a pair into account; does not synchronise.
  void add(const Tensor& a, const Tensor& b);

  struct Largest {
    float difference = 0.0f;  // |a - b|; NaN if there was one
    float value = 0.0f;       // |a|
  };
  Largest take();  // over all pairs since the last time; synchronises

 private:
  void reset();

  ExecContext& ctx_;
  Buffer result_;  // u32 [2]: the bits of two f32
};

// The time that the device needs for a call, in seconds.
class CallTimer {
 public:
  // `bytes_in_turn` are what calls read before one reads the same again: unless that is a multiple
  // of the L2 by itself, the L2 is flushed before each call.
  CallTimer(int64_t bytes_in_turn, ExecContext& ctx);

  // The median over several runs of calls, each enqueued by `call`; nothing if the first call shows
  // that it is far above `best`. Synchronises. With Launches::overlapping a norm stands behind each
  // call, for whatever small kernel does in a step, and its time is counted: a product that lets it
  // begin early saves some microseconds of it.
  std::optional<double> median(const std::function<void()>& call, double best);

 private:
  void flush();

  ExecContext& ctx_;
  Buffer flushed_;
  bool flush_always_;
  OwnedTensor residual_;  // of the norm
  OwnedTensor norm_weight_;
  OwnedTensor normalized_;
  std::vector<CudaEvent> before_;
  std::vector<CudaEvent> after_;
};

}  // namespace sparsellm
