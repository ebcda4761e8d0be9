#pragma once

#include <cstdint>

#include "kernels/base/exec.h"
#include "kernels/paged_kv.h"
#include "models/weights/linear.h"

namespace sparsellm {

// Multi-head or grouped-query self-attention with its projections.
struct SelfAttention {
  Linear qkv;  // [(heads + 2 * kv_heads) * head_dim, hidden]: q, k and v joined by rows
  Linear out;  // [hidden, heads * head_dim]
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;

  // x, y [tokens, hidden]; y may be x. cos_sin (kernels/rope.h) rotates q and k; empty: no rotary
  // positions. The step's keys and values are added to kv.
  void forward(const Tensor& x, const PagedBatch& batch, const Tensor& cos_sin, const KvLayer& kv,
               Tensor y, ExecContext& ctx) const;

  int64_t workspace_bytes(int64_t tokens, DType dtype, Device device, Sums sums) const;
};

}  // namespace sparsellm
