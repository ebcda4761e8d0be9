#pragma once

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// y += x, both [tokens, features]. They may be the same tensor, and overlap in no other way.
void add(const Tensor& x, Tensor y, ExecContext& ctx);

}  // namespace sparsellm
