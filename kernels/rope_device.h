#pragma once

#include "kernels/rope.h"

namespace sparsellm {

// The implementations of rope_angles(), which has checked their arguments.
void rope_angles_cpu(const Tensor& positions, const Tensor& frequencies, Tensor cos_sin,
                     ExecContext& ctx);
void rope_angles_cuda(const Tensor& positions, const Tensor& frequencies, Tensor cos_sin,
                      ExecContext& ctx);

}  // namespace sparsellm
