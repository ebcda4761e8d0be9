#include "models/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/append_attention.h"
#include "kernels/attention.h"
#include "kernels/base/step_trace.h"

namespace sparsellm {

SelfAttention::Activations SelfAttention::activations(const Tensor& x,
                                                      Workspace::Scope& scratch) const {
  return {.joined = scratch.tensor(x.dtype(), {x.size(0), (heads + 2 * kv_heads) * head_dim}),
          .mixed = scratch.tensor(x.dtype(), {x.size(0), heads * head_dim})};
}

void SelfAttention::mix(const Activations& rows, const PagedBatch& batch, const Tensor& cos_sin,
                        const KvLayer& kv, ExecContext& ctx) const {
  const TraceScope traced(ctx, "attention");
  const int64_t q_size = heads * head_dim;
  const int64_t kv_size = kv_heads * head_dim;
  const QkvRows parts{.q = rows.joined.columns(0, q_size),
                      .k = rows.joined.columns(q_size, kv_size),
                      .v = rows.joined.columns(q_size + kv_size, kv_size)};
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  const HeadNorms norms{.q = q_norm.view, .k = k_norm.view, .epsilon = norm_epsilon};
  append_attention({.cos_sin = cos_sin, .norms = norms}, parts, batch, kv,
                   {.scale = scale, .window = window}, rows.mixed, ctx);
}

int64_t SelfAttention::activation_bytes(int64_t tokens, DType dtype) const {
  return Workspace::tensor_bytes(dtype, {tokens, (heads + 2 * kv_heads) * head_dim}) +
         Workspace::tensor_bytes(dtype, {tokens, heads * head_dim});
}

int64_t SelfAttention::workspace_bytes(int64_t tokens, DType dtype, Device device,
                                       Sums sums) const {
  return activation_bytes(tokens, dtype) +
         std::max({attention_workspace_bytes(device, heads, kv_heads, head_dim),
                   qkv.workspace_bytes(tokens, sums), out.workspace_bytes(tokens, sums)});
}

}  // namespace sparsellm
