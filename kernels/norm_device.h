#pragma once

#include "kernels/norm.h"

namespace sparsellm {

// The implementations of the ops of norm.h, which have checked their arguments. Without a delta
// x is not written.
void layer_norm_cpu(const Tensor& delta, const Tensor& x, const NormParams& params, const Tensor& y,
                    ExecContext& ctx);
void layer_norm_cuda(const Tensor& delta, const Tensor& x, const NormParams& params,
                     const Tensor& y, ExecContext& ctx);
void rms_norm_cpu(const Tensor& delta, const Tensor& x, const NormParams& params, const Tensor& y,
                  ExecContext& ctx);
void rms_norm_cuda(const Tensor& delta, const Tensor& x, const NormParams& params, const Tensor& y,
                   ExecContext& ctx);

}  // namespace sparsellm
