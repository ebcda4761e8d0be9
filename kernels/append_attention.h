#pragma once

#include "kernels/attention.h"
#include "kernels/kv_append.h"

namespace sparsellm {

// rope_kv_append(), or kv_append() where cos_sin is empty, and then attention() of rows.q, which
// say what the operands are and where they must not overlap; y overlaps no other operand.
// Afterwards rows.q and rows.k hold what they held or its rotation. On CUDA, decode rows that do
// not fill the GPU take one kernel (but under Sums::batch_invariant): it takes the step's tokens
// from the rows, and puts them in their pages by the way.
void append_attention(const Tensor& cos_sin, const QkvRows& rows, const PagedBatch& batch,
                      const KvLayer& kv, const AttentionParams& params, Tensor y, ExecContext& ctx);

}  // namespace sparsellm
