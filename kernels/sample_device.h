#pragma once

#include "kernels/sample.h"

namespace sparsellm {

// The implementation of sample(), which has checked its arguments.
void sample_cuda(const Tensor& logits, const Tensor& rows, const Tensor& banned, Tensor tokens,
                 ExecContext& ctx);

}  // namespace sparsellm
