#pragma once

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// Puts tokens that the step before chose in place: an id below 0 becomes chosen[-1 - id], or 0 if
// that is no token (below 0: its request has failed). On CUDA only: on the CPU nothing is enqueued.
//   ids i32 [tokens], in place; chosen i32 [n]
// Every -1 - id is below n, which is not checked.
void take_chosen(const Tensor& chosen, Tensor ids, ExecContext& ctx);

}  // namespace sparsellm
