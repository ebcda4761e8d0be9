#pragma once

#include "sparse/format.h"

namespace sparsellm {

// tca_bme, Tensor-Core-Aware Bitmap Encoding (SpInfer, Fan et al., EuroSys 2025, section 4.2): one
// bit per element, and the nonzeros, in the order in which tensor-core fragments take them. For f16
// and bf16; NaN, infinities and subnormals are kept bit by bit, a negative zero becomes a zero.
// Versions of the layout:
//   1  the paper's (paper_layout.h)
//   2  records of bits, offsets and values (record_layout.h); what encode() makes, of pairs or not
//   3  the same of values of 8 or 4 bits with scales (quantized_layout.h), of a QuantizedMatrix by
//      encode_quantized()
// The texts of LayoutOptions are "speed" and "size" (records_for.h): with "size" there are no
// pairs. Slices and joins have the version of what they are made of; those of version 3 its codes
// and scales: columns of i4 that begin in the middle of a group have smaller groups, and from no
// multiple of 32 on there is an Error. What joins quantised matrices of several types, or others
// with them, is version 2 of their values. formula_bytes() is the paper's for 1 and 2: with
// nonzeros side by side, version 2 may be smaller by half a percent. Sizes of version 3 depend on
// the part that says its layout, which a header has to have.
const WeightFormat& tca_bme_format();

}  // namespace sparsellm
