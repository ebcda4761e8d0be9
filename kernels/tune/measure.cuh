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

  // The median over several runs of calls; nothing if the first call shows that it is far above
  // `best`. They run in a captured graph, as in a step: the time that the host takes for a launch,
  // which differs by machine and by kernel, is no part of it. Unless the calls of a turn read a
  // multiple of the L2, it is flushed before each. Synchronises.
  //
  // With Launches::overlapping the calls follow norms, a long one (about as long as attention) and
  // a short one by turns, and a norm follows the last: a product of a step stands between such
  // kernels. Their time is counted, since with PDL a product saves time of its neighbours: one that
  // reads weights while the kernel before runs gains the more, the longer that takes.
  std::optional<double> median(const TuneMeter::Call& call, double best);

 private:
  void flush();
  void norm(int64_t tokens, int64_t features);
  // Runs `work` in a graph, or without one where another thread's work breaks the capture.
  void run(const std::function<void()>& work);

  ExecContext& ctx_;
  Buffer flushed_;
  OwnedTensor residual_;  // of a norm
  OwnedTensor norm_weight_;
  OwnedTensor normalized_;
  std::vector<CudaEvent> before_;
  std::vector<CudaEvent> after_;
};

}  // namespace sparsellm
