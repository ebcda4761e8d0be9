#pragma once

#include "kernels/append_attention.h"

namespace sparsellm {

// In one kernel, of checked arguments. Returns false, and has done nothing, where two are faster or
// sums are to be batch invariant.
bool append_attention_cuda(const Tensor& cos_sin, const QkvRows& rows, const PagedBatch& batch,
                           const KvLayer& kv, float scale, Tensor y, ExecContext& ctx);

}  // namespace sparsellm
