#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/cuda_context.h"
#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "kernels/tune/tune_meter.h"

namespace sparsellm {

// The tools of tuning on CUDA.

// Values of [-1, 1) that look random; x is contiguous, in a dtype of activations.
void fill_operand(const Tensor& x, ExecContext& ctx);

// Compares matrices of one shape and dtype on the device.
class Comparison {
 public:
  explicit Comparison(ExecContext& ctx);

  // Takes a pair into account; does not synchronise.
  void add(const Tensor& a, const Tensor& b);

  TuneMeter::Largest take();  // over all pairs since the last time; synchronises

 private:
  void reset();

  ExecContext& ctx_;
  Buffer result_;  // u32 [2]: the bits of two f32
};

// The time that the device needs for a call, in seconds.
class CallTimer {
 public:
  explicit CallTimer(ExecContext& ctx);

  // The median over several runs of calls, each enqueued by `call`; nothing if the first call shows
  // that it is far above `best`. `bytes_in_turn` are what calls read before one reads the same
  // again: unless that is a multiple of the L2 by itself, the L2 is flushed before each call.
  // Synchronises. With Launches::overlapping a norm follows each call, as a small kernel does in a
  // step, and its time is counted: a product whose dependents are launched early saves some
  // microseconds of it.
  std::optional<double> median(const std::function<void()>& call, int64_t bytes_in_turn,
                               double best);

 private:
  void flush();

  ExecContext& ctx_;
  Buffer flushed_;
  OwnedTensor residual_;  // of the norm
  OwnedTensor norm_weight_;
  OwnedTensor normalized_;
  std::vector<CudaEvent> before_;
  std::vector<CudaEvent> after_;
};

}  // namespace sparsellm
