#pragma once

#include <cstdint>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "kernels/epilogue.h"

namespace sparsellm {

// A weight [out, in] on its device, in whatever format it is stored; immutable after load.
class WeightMatrix {
 public:
  virtual ~WeightMatrix() = default;

  virtual int64_t out() const = 0;
  virtual int64_t in() const = 0;
  virtual int64_t bytes() const = 0;  // that a product reads

  // y [tokens, out] = epilogue(x [tokens, in] * W^T); any number of tokens; y must not overlap x.
  virtual void matmul(const Tensor& x, Tensor y, const Epilogue& epilogue,
                      ExecContext& ctx) const = 0;
};

}  // namespace sparsellm
