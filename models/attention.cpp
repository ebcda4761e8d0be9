#include "models/attention.h"

#include <cmath>

#include "kernels/attention.h"
#include "kernels/kv_append.h"
#include "kernels/rope.h"

namespace sparsellm {

void SelfAttention::forward(const Tensor& x, const PagedBatch& batch, const Tensor& cos_sin,
                            const KvLayer& kv, Tensor y, ExecContext& ctx) const {
  auto scratch = ctx.workspace.scope();
  const int64_t q_size = heads * head_dim;
  const int64_t kv_size = kv_heads * head_dim;
  Tensor joined = scratch.tensor(x.dtype(), {x.size(0), q_size + 2 * kv_size});
  Tensor mixed = scratch.tensor(x.dtype(), {x.size(0), q_size});

  qkv.forward(x, joined, ctx);
  if (!cos_sin.empty()) {
    rope(cos_sin, joined.columns(0, q_size + kv_size), ctx);  // q and k are side by side
  }
  kv_append(joined.columns(q_size, kv_size), joined.columns(q_size + kv_size, kv_size), batch, kv,
            ctx);
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  attention(joined.columns(0, q_size), kv, batch, scale, mixed, ctx);
  out.forward(mixed, y, ctx);
}

int64_t SelfAttention::workspace_bytes(int64_t tokens, DType dtype) const {
  return Workspace::tensor_bytes(dtype, {tokens, (heads + 2 * kv_heads) * head_dim}) +
         Workspace::tensor_bytes(dtype, {tokens, heads * head_dim});
}

}  // namespace sparsellm
