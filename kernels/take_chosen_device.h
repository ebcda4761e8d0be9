#pragma once

#include "kernels/take_chosen.h"

namespace sparsellm {

// The implementations of take_chosen(), which has checked their arguments.
void take_chosen_cpu(const Tensor& chosen, Tensor ids);
void take_chosen_cuda(const Tensor& chosen, Tensor ids, ExecContext& ctx);

}  // namespace sparsellm
