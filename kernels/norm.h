#pragma once

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// x f32 [tokens, features], the residual stream; y [tokens, features] in the dtype of activations,
// on the CPU it may be x; weight and bias [features] in any floating dtype, on CUDA in that of
// activations; bias may be empty. On CUDA there are at most 32,768 features. Statistics are taken
// in f32, over one row. With Launches::overlapping weight and bias may be read before what was
// enqueued before has ended.

struct NormParams {
  Tensor weight;
  Tensor bias;
  float epsilon = 0.0f;
  float scale = 1.0f;        // the normalised values are multiplied by it
  float delta_scale = 1.0f;  // delta is multiplied by it before it is added to x
};

// y = (x - mean) / sqrt(variance + epsilon) * scale * weight + bias, with the biased variance.
void layer_norm(const Tensor& x, const NormParams& params, Tensor y, ExecContext& ctx);

// y = x / sqrt(mean(x^2) + epsilon) * scale * weight.
void rms_norm(const Tensor& x, const NormParams& params, Tensor y, ExecContext& ctx);

// The same after x += delta_scale * delta, in one pass. delta [tokens, features] in the dtype of
// activations, apart from x; y may be delta, and is not x.
void add_layer_norm(const Tensor& delta, Tensor x, const NormParams& params, Tensor y,
                    ExecContext& ctx);
void add_rms_norm(const Tensor& delta, Tensor x, const NormParams& params, Tensor y,
                  ExecContext& ctx);

}  // namespace sparsellm
