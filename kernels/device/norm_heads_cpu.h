#pragma once

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// RMSNorm (kernels/norm.h) of each head of x [tokens, heads * head_dim] by itself, in place; weight
// [head_dim] is that of all heads, in any floating dtype. x may be a slice of columns.
void norm_heads_cpu(const Tensor& weight, float epsilon, Tensor x, ExecContext& ctx);

}  // namespace sparsellm
