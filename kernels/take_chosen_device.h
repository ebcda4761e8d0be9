#pragma once

#include "kernels/take_chosen.h"

namespace sparsellm {

// take_chosen(), which has checked the arguments.
void take_chosen_cuda(const Tensor& chosen, Tensor ids, ExecContext& ctx);

}  // namespace sparsellm
