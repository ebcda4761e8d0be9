#pragma once

#include <cstdint>

#include "kernels/base/buffer.h"
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
  // Weights [head_dim] of the norms of each head of q and k, which come before RoPE (HeadNorms in
  // kernels/kv_append.h); empty: none.
  OwnedTensor q_norm = {};
  OwnedTensor k_norm = {};
  float norm_epsilon = 0.0f;
  int64_t window = 0;  // AttentionParams of kernels/attention.h; 0: none

  // What qkv computes and out multiplies by, of rows [tokens, hidden] that are alike `x`: tensors
  // of `scratch`.
  struct Activations {
    Tensor joined;  // [tokens, (heads + 2 * kv_heads) * head_dim]
    Tensor mixed;   // [tokens, heads * head_dim]
  };
  Activations activations(const Tensor& x, Workspace::Scope& scratch) const;

  // What comes between the projections. cos_sin (kernels/rope.h) rotates q and k; empty: no rotary
  // positions. The step's keys and values are added to kv.
  void mix(const Activations& rows, const PagedBatch& batch, const Tensor& cos_sin,
           const KvLayer& kv, ExecContext& ctx) const;

  int64_t activation_bytes(int64_t tokens, DType dtype) const;  // of activations()
  // Of these, and of what they are computed with.
  int64_t workspace_bytes(int64_t tokens, DType dtype, Device device, Sums sums) const;
};

}  // namespace sparsellm
