#pragma once

#include "sparse/format.h"

namespace sparsellm {

// tca_bme, Tensor-Core-Aware Bitmap Encoding (SpInfer, Fan et al., EuroSys 2025, section 4.2): one
// bit per element, and the nonzeros, in the order in which tensor-core fragments take them. For f16
// and bf16; NaN, infinities and subnormals are kept bit by bit, a negative zero becomes a zero.
// Versions of the layout:
//   1  the paper's (paper_layout.h)
//   2  records of bits, offsets and values (record_layout.h); what encode() makes, of pairs or not
// The texts of LayoutOptions are "speed" and "size" (records_for.h): with "size" there are no
// pairs. Slices and joins have the version of what they are made of. formula_bytes() is the paper's
// for both: with nonzeros side by side, version 2 may be smaller by half a percent.
const WeightFormat& tca_bme_format();

}  // namespace sparsellm
