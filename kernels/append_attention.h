#pragma once

#include "kernels/kv_append.h"

namespace sparsellm {

// rope_kv_append(), or kv_append() where cos_sin is empty, and then attention() of rows.q, which
// say what the operands are and where they must not overlap; y overlaps none of the rows.
// Afterwards rows.q and rows.k hold what they held or its rotation. Decode rows take one kernel on
// CUDA, unless sums are to be batch invariant: it reads the pages before those that were enqueued
// before it have ended, and the step's tokens from the rows.
void append_attention(const Tensor& cos_sin, const QkvRows& rows, const PagedBatch& batch,
                      const KvLayer& kv, float scale, Tensor y, ExecContext& ctx);

}  // namespace sparsellm
