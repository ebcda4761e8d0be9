#pragma once

#include <optional>
#include <string>

#include "kernels/tune/measure.cuh"
#include "kernels/tune/tune_meter.h"

namespace sparsellm {

// A CUDA device, with the queue and the kind of launches of `ctx`. Takes memory of the device from
// the first measurement on.
class CudaMeter : public TuneMeter {
 public:
  explicit CudaMeter(ExecContext& ctx) : ctx_(ctx) {}

  std::string device_key() override;  // the GPU, and the versions of CUDA and cuBLASLt
  void poison(const Tensor& y) override;
  Largest compare(const Tensor& a, const Tensor& b) override;
  std::optional<double> seconds(const Call& call, double best) override;

 private:
  ExecContext& ctx_;
  std::string device_key_;  // from the first call on: the properties of a device take their time
  std::optional<Comparison> comparison_;
  std::optional<CallTimer> timer_;
};

}  // namespace sparsellm
