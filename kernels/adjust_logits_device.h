#pragma once

#include "kernels/adjust_logits.h"

namespace sparsellm {

// Implementations of kernels/adjust_logits.h for CUDA; the arguments are checked.
void adjust_logits_cuda(const Tensor& rows, const Tensor& tokens, Tensor adjustments,
                        int64_t first_row, Tensor logits, ExecContext& ctx);
void restore_logits_cuda(const Tensor& rows, const Tensor& adjustments, int64_t first_row,
                         Tensor logits, ExecContext& ctx);

}  // namespace sparsellm
