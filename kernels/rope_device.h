#pragma once

#include "kernels/rope.h"

namespace sparsellm {

// The implementations behind rope_angles(), which has checked their arguments.
void rope_angles_cpu(const Tensor& positions, const Tensor& frequencies, Tensor cos_sin,
                     ExecContext& ctx);
void rope_angles_cuda(const Tensor& positions, const Tensor& frequencies, Tensor cos_sin,
                      ExecContext& ctx);

// Rotates all heads of x [tokens, heads * head_dim] in place; head_dim is cos_sin's row size. x may
// be a slice of columns.
void rotate_cpu(const Tensor& cos_sin, Tensor x, ExecContext& ctx);

}  // namespace sparsellm
