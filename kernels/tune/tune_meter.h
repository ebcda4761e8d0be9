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

  // The median of several calls, each enqueued by `call`, which read so many bytes before one reads
  // the same again; nothing if the first shows that they are far slower than `best`.
  virtual std::optional<double> seconds(const std::function<void()>& call, int64_t bytes_in_turn,
                                        double best) = 0;
};

}  // namespace sparsellm
