#pragma once

#include "kernels/kv_append.h"

namespace sparsellm {

// The implementations behind kv_append(), which has checked their arguments.
void kv_append_cpu(const Tensor& k, const Tensor& v, const PagedBatch& batch, const KvLayer& kv,
                   ExecContext& ctx);
void kv_append_cuda(const Tensor& k, const Tensor& v, const PagedBatch& batch, const KvLayer& kv,
                    ExecContext& ctx);

}  // namespace sparsellm
