#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "kernels/base/tensor.h"

namespace sparsellm {

// What tuning needs of a device.
class TuneMeter {
 public:
  virtual ~TuneMeter() = default;

  // The device and the libraries that run on it, as far as a choice depends on them. For files.
  virtual std::string device_key() = 0;

  // Makes every element NaN.
  virtual void poison(const Tensor& y) = 0;

  struct Largest {
    float difference = 0.0f;  // |a - b|; NaN if there was one
    float value = 0.0f;       // |a|
  };
  // Over the elements of two matrices of one shape and dtype, after what was enqueued.
  virtual Largest compare(const Tensor& a, const Tensor& b) = 0;

  struct Call {
    std::function<void()> enqueue;  // neither synchronises nor allocates
    int64_t tokens = 0;             // rows of its result
    int64_t bytes_in_turn = 0;      // that calls read before one reads the same again
  };
  // The median of several calls; nothing if the first shows that they are far slower than `best`.
  virtual std::optional<double> seconds(const Call& call, double best) = 0;
};

}  // namespace sparsellm
