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

// The same after queries and keys were rotated by RoPE (kernels/rope.h). q is rotated in place;
// afterwards k holds either what it held or its rotation.
//   cos_sin f32 [tokens, head_dim], of rope_angles()
void rope_kv_append(const Tensor& cos_sin, const QkvRows& rows, const PagedBatch& batch,
                    const KvLayer& kv, ExecContext& ctx);

}  // namespace sparsellm
