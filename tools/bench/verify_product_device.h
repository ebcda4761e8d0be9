#pragma once

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// The devices' sides of tools/bench/verify_product.h; operands are checked.
struct ProductSums {
  Tensor values;      // f32 [tokens, out]
  Tensor magnitudes;  // the same: sums of the absolute values of what the values are sums of
  // For products that round x; on the CPU they may be empty.
  Tensor weight_sums = {};     // f32 [out], of absolute values
  Tensor largest_inputs = {};  // f32 [tokens], magnitudes
};
void product_reference_cpu(const Tensor& x, const Tensor& w, const ProductSums& sums,
                           ExecContext& ctx);
void product_reference_cuda(const Tensor& x, const Tensor& w, const ProductSums& sums,
                            ExecContext& ctx);

// `worst` f32 [1] is for the device to use.
double product_error_cpu(const Tensor& y, const ProductSums& sums, double input_rounding,
                         ExecContext& ctx);
double product_error_cuda(const Tensor& y, const ProductSums& sums, double input_rounding,
                          const Tensor& worst, ExecContext& ctx);

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
