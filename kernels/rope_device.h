#pragma once

#include "kernels/rope.h"

namespace sparsellm {

// The implementations behind rope_angles() and rope(), which have checked their arguments.
void rope_angles_cpu(const Tensor& positions, const Tensor& frequencies, Tensor cos_sin,
                     ExecContext& ctx);
void rope_angles_cuda(const Tensor& positions, const Tensor& frequencies, Tensor cos_sin,
                      ExecContext& ctx);
void rope_cpu(const Tensor& cos_sin, Tensor x, ExecContext& ctx);
void rope_cuda(const Tensor& cos_sin, Tensor x, ExecContext& ctx);

}  // namespace sparsellm
