#pragma once

#include "kernels/base/exec.h"
#include "kernels/paged_kv.h"

namespace sparsellm {

// Stores a step's keys and values in their pages.
//   k, v [tokens, kv_heads * head_dim], which may be slices of columns
// The pages are those that batch.page_table names for each row's position. On the CPU, tables with
// a number out of range, or positions that contradict kv_length, throw Error; and in pages of f16 a
// finite value beyond f16 is a NaN.
void kv_append(const Tensor& k, const Tensor& v, const PagedBatch& batch, const KvLayer& kv,
               ExecContext& ctx);

// A step's queries, keys and values, slices of the columns of one matrix or apart.
struct QkvRows {
  Tensor q;  // [tokens, heads * head_dim]
  Tensor k;  // [tokens, kv_heads * head_dim]
  Tensor v;  // the same
};

// RMSNorm of each head of queries and of keys by itself (Qwen3): x / sqrt(mean(x^2) + epsilon) *
// weight, in f32.
//   q, k [head_dim], the weights, which all heads share, in any floating dtype, on CUDA in that of
//   activations
// Both are empty: none. With Launches::overlapping they may be read before what was enqueued before
// has ended. head_dim is at most kMaxHeadDim.
struct HeadNorms {
  Tensor q = {};
  Tensor k = {};
  float epsilon = 0.0f;

  bool empty() const { return q.empty() && k.empty(); }
};

// What becomes of queries and keys before they are stored and multiplied: first their norms, and
// then their rotation by RoPE (kernels/rope.h), without rounding between them.
struct QkTransform {
  Tensor cos_sin = {};  // f32 [tokens, head_dim], of rope_angles(); empty: no rotation
  HeadNorms norms = {};

  bool empty() const { return cos_sin.empty() && norms.empty(); }
};

// kv_append() after the transform of queries and keys. q is transformed in place; afterwards k
// holds either what it held or what became of it.
void rope_kv_append(const QkTransform& transform, const QkvRows& rows, const PagedBatch& batch,
                    const KvLayer& kv, ExecContext& ctx);

}  // namespace sparsellm
