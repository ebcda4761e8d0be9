#pragma once

#include <cstdint>

#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"
#include "sparse/quantize/quantized_matrix.h"

namespace sparsellm {

// w [rows, columns] (out, in) is f16, bf16 or f32, in host memory; its rows may be strided. `group`
// is the columns of i4 that share a scale, 32, 64 or 128, and is not looked at for i8 and f8.
//
// Symmetric, without a zero point: a zero stays a zero, and a pruned weight needs no code. Each
// other weight becomes the number of its type (-127..127 of i8, -8..7 of i4, all of e4m3 of f8)
// that is nearest to it at its scale, ties to even; that may be zero.
//
// The scale is of the least sum of squared errors over the nonzeros of a row, or of i4 of a row's
// group, as far as a search finds it: some tens of scales are tried, each gives codes, and these
// the scale that least squares have for them. It is never worse than that of the largest magnitude
// over the largest number, and of i4 within 0.2 % of the optimum on normally distributed weights.
// Scales of i4 are rounded to f16 before weights are rounded; they are in [2^-24, 65504], those of
// i8 and f8 all positive f32. What is dequantised to the dtype of w is finite. Without nonzeros the
// scale is 1.
//
// The result depends on w alone, not on the number of threads. Throws Error for other tensors,
// other groups, and for a weight that is infinite or NaN.
QuantizedMatrix quantize(const Tensor& w, ValueType type, int64_t group, ThreadPool& threads);

}  // namespace sparsellm
