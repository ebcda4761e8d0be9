#pragma once

#include "kernels/norm.h"

namespace sparsellm {

// The implementations behind layer_norm() and rms_norm(), which have checked their arguments.
void layer_norm_cpu(const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon,
                    Tensor y, ExecContext& ctx);
void layer_norm_cuda(const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon,
                     Tensor y, ExecContext& ctx);
void rms_norm_cpu(const Tensor& x, const Tensor& weight, float epsilon, Tensor y, ExecContext& ctx);
void rms_norm_cuda(const Tensor& x, const Tensor& weight, float epsilon, Tensor y,
                   ExecContext& ctx);

}  // namespace sparsellm
