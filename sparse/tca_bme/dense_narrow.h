#pragma once

#include "sparse/format.h"

namespace sparsellm {

// dense_i8 and dense_i4: all elements of a matrix in 8 or 4 bits, with the scales that tca_bme has
// with such values, in its records without bitmaps (tca_bme/quantized/quantized_layout.h), which
// its kernels multiply. For weights with too few zeros for bitmaps to pay, and what sparse formats
// of such values are to be compared with. They belong to tca_bme, whose device code they share.
//
// encode() rounds f16 and bf16, as quantize() does (sparse/quantize/quantize.h); it throws Error
// for a weight that is infinite or NaN. decode() and products on any device have the rounded
// values. The texts of LayoutOptions are those of these values: "i8", and "i4", "i4:32", "i4:64"
// and "i4:128", which say how many columns share a scale; empty: "i8" or "i4". Slices and joins
// keep codes and scales, with Errors and smaller groups where those of tca_bme have them. What
// joins weights with different groups, or others with them, is rounded anew.
const WeightFormat& dense_i8_format();
const WeightFormat& dense_i4_format();

}  // namespace sparsellm
