#pragma once

#include "kernels/kv_append.h"

namespace sparsellm {

// Throws Error for arguments that rope_kv_append() does not take.
void check_kv_append(const QkTransform& transform, const QkvRows& rows, const PagedBatch& batch,
                     const KvLayer& kv, const ExecContext& ctx);

// The implementations of the ops of kv_append.h, which have checked their arguments.
void kv_append_cpu(const Tensor& k, const Tensor& v, const PagedBatch& batch, const KvLayer& kv,
                   ExecContext& ctx);
void kv_append_cuda(const Tensor& k, const Tensor& v, const PagedBatch& batch, const KvLayer& kv,
                    ExecContext& ctx);
void rope_kv_append_cpu(const QkTransform& transform, const QkvRows& rows, const PagedBatch& batch,
                        const KvLayer& kv, ExecContext& ctx);
void rope_kv_append_cuda(const QkTransform& transform, const QkvRows& rows, const PagedBatch& batch,
                         const KvLayer& kv, ExecContext& ctx);

}  // namespace sparsellm
