#pragma once

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// x, y [tokens, features]; weight and bias [features] in any floating dtype; bias may be empty. x
// and y may be the same tensor. Statistics are taken in f32, over one row.

// y = (x - mean) / sqrt(variance + epsilon) * weight + bias, with the biased variance.
void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon, Tensor y,
                ExecContext& ctx);

// y = x / sqrt(mean(x^2) + epsilon) * weight.
void rms_norm(const Tensor& x, const Tensor& weight, float epsilon, Tensor y, ExecContext& ctx);

}  // namespace sparsellm
