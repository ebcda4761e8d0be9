#pragma once

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// The devices' sides of tools/bench/verify_product.h; operands are checked. `magnitudes` has the
// same shape as `values`, f32 [tokens, out]: sums of the absolute values of what the values are
// sums of, and input_rounding times the weights' absolute values and the largest input of a token.
struct ProductSums {
  Tensor values;
  Tensor magnitudes;
  double input_rounding = 0.0;
};
void product_reference_cpu(const Tensor& x, const Tensor& w, const ProductSums& sums,
                           ExecContext& ctx);
void product_reference_cuda(const Tensor& x, const Tensor& w, const ProductSums& sums,
                            ExecContext& ctx);

// `worst` f32 [1] is for the device to use.
double product_error_cpu(const Tensor& y, const ProductSums& sums, ExecContext& ctx);
double product_error_cuda(const Tensor& y, const ProductSums& sums, const Tensor& worst,
                          ExecContext& ctx);

void poison_cuda(const Tensor& y, ExecContext& ctx);

// |result - exact| <= relative * |exact| + absolute for a result rounded to nearest.
struct Rounding {
  float relative;
  float absolute;
};
Rounding rounding_of(DType dtype);

// Of a sum, in parts of its magnitude.
inline constexpr float kSumTolerance = 64 * 0x1p-23f;

}  // namespace sparsellm
