#pragma once

#include "kernels/transpose.h"

namespace sparsellm {

// The implementation of transpose(), which has checked its arguments; that of the CPU is
// kernels/cpu/transpose.h.
void transpose_cuda(const Tensor& x, Tensor y, ExecContext& ctx);

}  // namespace sparsellm
