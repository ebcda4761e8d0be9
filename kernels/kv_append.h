#pragma once

#include "kernels/base/exec.h"
#include "kernels/paged_kv.h"

namespace sparsellm {

// Stores a step's keys and values in their pages.
//   k, v [tokens, kv_heads * head_dim], which may be slices of columns
// The pages are those that batch.page_table names for each row's position. On the CPU, tables with
// a number out of range, or positions that contradict kv_length, throw Error.
void kv_append(const Tensor& k, const Tensor& v, const PagedBatch& batch, const KvLayer& kv,
               ExecContext& ctx);

}  // namespace sparsellm
