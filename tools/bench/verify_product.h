#pragma once

#include <cstdint>
#include <functional>

#include "kernels/base/buffer.h"
#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// y [tokens, out] = x [tokens, in] * w^T, computed by a plain loop in double, and how far a
// result may be from it:
//   64 * 2^-23 * sum |w||x|   for sums in f32 in any order, on tensor cores too, which truncate
//                             (Fasi et al., Numerical Behavior of NVIDIA Tensor Cores, 2021)
//   + the input rounding * sum |w| * the largest |x| of the token, for products that round x
//   + the rounding of the result to its dtype.
// All tensors are contiguous and on the context's device: on CUDA in f16 or bf16, on the CPU of any
// floating dtype.
struct ProductSums;

class ProductReference {
 public:
  ProductReference(const Tensor& x, const Tensor& w, ExecContext& ctx);

  // The largest |y - reference| in units of what is allowed: at most 1 if y is right, infinity if
  // there is a NaN. y has the first rows of the product, all or some; input_rounding as of
  // WeightMatrix. Synchronises.
  double worst_error(const Tensor& y, ExecContext& ctx, double input_rounding = 0.0) const;

 private:
  ProductSums sums() const;

  OwnedTensor values_;          // f32 [tokens, out]
  OwnedTensor magnitudes_;      // f32 [tokens, out], sum |w||x|
  OwnedTensor weight_sums_;     // f32 [out], sum |w|
  OwnedTensor largest_inputs_;  // f32 [tokens], the largest |x|
  OwnedTensor worst_;           // f32 [1]
};

// Every byte of what is poisoned: all bits set are a NaN of every floating dtype.
inline constexpr int kPoison = 0xff;

// Fills y, of any floating dtype, with NaN: what a kernel leaves unwritten is found out.
void poison(const Tensor& y, ExecContext& ctx);

// The worst error of y over all copies of a weight; multiply(copy) enqueues its product into y,
// which is poisoned before each. Synchronises.
double verify_product(const std::function<void(int64_t)>& multiply, int64_t copies, const Tensor& y,
                      const ProductReference& reference, ExecContext& ctx,
                      double input_rounding = 0.0);

}  // namespace sparsellm
