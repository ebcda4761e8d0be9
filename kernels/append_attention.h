#pragma once

#include "kernels/attention.h"
#include "kernels/kv_append.h"

namespace sparsellm {

// rope_kv_append() and then attention() of rows.q, which say what the operands are and where they
// must not overlap; y overlaps no other operand.
// Afterwards rows.q and rows.k hold what they held or what became of it. On CUDA, decode rows that
// do not fill the GPU take one kernel (but under Sums::batch_invariant): it takes the step's tokens
// from the rows, and puts them in their pages by the way.
void append_attention(const QkTransform& transform, const QkvRows& rows, const PagedBatch& batch,
                      const KvLayer& kv, const AttentionParams& params, Tensor y, ExecContext& ctx);

}  // namespace sparsellm
