#pragma once

#include "kernels/add.h"

namespace sparsellm {

// The implementations of add(), which has checked their arguments.
void add_cpu(const Tensor& x, Tensor y, ExecContext& ctx, float scale);
void add_cuda(const Tensor& x, Tensor y, ExecContext& ctx, float scale);

}  // namespace sparsellm
