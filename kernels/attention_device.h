#pragma once

#include "kernels/attention.h"

namespace sparsellm {

// The implementations behind attention(), which has checked their arguments.
void attention_cpu(const Tensor& q, const KvLayer& kv, const PagedBatch& batch, float scale,
                   Tensor y, ExecContext& ctx);
void attention_cuda(const Tensor& q, const KvLayer& kv, const PagedBatch& batch, float scale,
                    Tensor y, ExecContext& ctx);

}  // namespace sparsellm
