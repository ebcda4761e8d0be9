#pragma once

#include "kernels/log_probs.h"

namespace sparsellm {

// The implementation of log_probs(), which has checked its arguments.
void log_probs_cuda(const Tensor& rows, const Tensor& tokens, int64_t first_row,
                    const Tensor& logits, Tensor results, ExecContext& ctx);

}  // namespace sparsellm
