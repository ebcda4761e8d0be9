#pragma once

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// y += scale * x. y f32 [tokens, features], the residual stream; x of the same shape in the dtype
// of activations. On the CPU they may be the same tensor; they overlap in no other way.
void add(const Tensor& x, Tensor y, ExecContext& ctx, float scale = 1.0f);

}  // namespace sparsellm
