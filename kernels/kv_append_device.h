#pragma once

#include "kernels/kv_append.h"

namespace sparsellm {

// The implementations behind the ops of kv_append.h, which have checked their arguments.
void kv_append_cpu(const Tensor& k, const Tensor& v, const PagedBatch& batch, const KvLayer& kv,
                   ExecContext& ctx);
void kv_append_cuda(const Tensor& k, const Tensor& v, const PagedBatch& batch, const KvLayer& kv,
                    ExecContext& ctx);
void rope_kv_append_cpu(const Tensor& cos_sin, const QkvRows& rows, const PagedBatch& batch,
                        const KvLayer& kv, ExecContext& ctx);
void rope_kv_append_cuda(const Tensor& cos_sin, const QkvRows& rows, const PagedBatch& batch,
                         const KvLayer& kv, ExecContext& ctx);

}  // namespace sparsellm
