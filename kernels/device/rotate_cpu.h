#pragma once

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// Rotates all heads of x [tokens, heads * head_dim] in place by RoPE (kernels/rope.h); head_dim is
// cos_sin's row size. x may be a slice of columns.
void rotate_cpu(const Tensor& cos_sin, Tensor x, ExecContext& ctx);

}  // namespace sparsellm
