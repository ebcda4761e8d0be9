#pragma once

#include "sparse/activation/fused_mlp.h"

namespace sparsellm {

// The implementations of fused_mlp.h; fused_mlp_cuda() is given what has been checked, and fits.
bool fused_mlp_fits_cuda(const FusedMlp& mlp, const ExecContext& ctx);
void fused_mlp_cuda(const Tensor& x, const Tensor& positions, const FusedMlp& mlp, Tensor y,
                    ExecContext& ctx);

}  // namespace sparsellm
