#include "models/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/append_attention.h"
#include "kernels/attention.h"
#include "kernels/base/step_trace.h"

namespace sparsellm {

void SelfAttention::forward(const Tensor& x, const PagedBatch& batch, const Tensor& cos_sin,
                            const KvLayer& kv, Tensor y, ExecContext& ctx) const {
  auto scratch = ctx.workspace.scope();
  const int64_t q_size = heads * head_dim;
  const int64_t kv_size = kv_heads * head_dim;
  Tensor joined = scratch.tensor(x.dtype(), {x.size(0), q_size + 2 * kv_size});
  Tensor mixed = scratch.tensor(x.dtype(), {x.size(0), q_size});

  qkv.forward(x, joined, ctx);
  const QkvRows rows{.q = joined.columns(0, q_size),
                     .k = joined.columns(q_size, kv_size),
                     .v = joined.columns(q_size + kv_size, kv_size)};
  {
    const TraceScope traced(ctx, "attention");
    const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    append_attention(cos_sin, rows, batch, kv, scale, mixed, ctx);
  }
  out.forward(mixed, y, ctx);
}

int64_t SelfAttention::workspace_bytes(int64_t tokens, DType dtype, Device device,
                                       Sums sums) const {
  return Workspace::tensor_bytes(dtype, {tokens, (heads + 2 * kv_heads) * head_dim}) +
         Workspace::tensor_bytes(dtype, {tokens, heads * head_dim}) +
         std::max({attention_workspace_bytes(device, heads, kv_heads, head_dim),
                   qkv.workspace_bytes(tokens, sums), out.workspace_bytes(tokens, sums)});
}

}  // namespace sparsellm
