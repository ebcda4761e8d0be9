#pragma once

#include "kernels/append_attention.h"
#include "kernels/attention.h"

namespace sparsellm {

// Throws Error for arguments that attention() does not take.
void check_attention(const Tensor& q, const KvLayer& kv, const PagedBatch& batch,
                     const AttentionParams& params, const Tensor& y, const ExecContext& ctx);

// The implementations of attention(), which has checked their arguments.
void attention_cpu(const Tensor& q, const KvLayer& kv, const PagedBatch& batch,
                   const AttentionParams& params, Tensor y, ExecContext& ctx);
void attention_cuda(const Tensor& q, const KvLayer& kv, const PagedBatch& batch,
                    const AttentionParams& params, Tensor y, ExecContext& ctx);

// append_attention() in one kernel, of checked arguments. Returns false, and has done nothing,
// where two are faster or sums are to be batch invariant.
bool append_attention_cuda(const QkTransform& transform, const QkvRows& rows,
                           const PagedBatch& batch, const KvLayer& kv,
                           const AttentionParams& params, Tensor y, ExecContext& ctx);

}  // namespace sparsellm
