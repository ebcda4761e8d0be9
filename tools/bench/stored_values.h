#pragma once

#include <string_view>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// Rounds random weights in [-1, 1), [out, in], to what values of 8 or 4 bits are at one scale, none
// to zero, of i8 the largest of each row to the largest: then quantising them changes almost none,
// and products by the stored values and by the dense ones can be held against one reference.
// `values`: "i8", "f8", "i4", or "i4:..."; w is contiguous, on the context's device, f16 or bf16.
void round_to_values(std::string_view values, const Tensor& w, ExecContext& ctx);

}  // namespace sparsellm
