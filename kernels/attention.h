#pragma once

#include <cstdint>

#include "kernels/base/exec.h"
#include "kernels/paged_kv.h"

namespace sparsellm {

inline constexpr int64_t kMaxHeadDim = 256;

// Causal attention of a step's rows over paged keys and values, which already hold this step's
// tokens: prefill and decode rows of several requests in one call.
//   q, y [tokens, heads * head_dim]; q may be a slice of columns; they must not overlap
//   scale, above 0, multiplies the products q * k
// heads is a multiple of kv_heads; consecutive query heads share a key/value head (GQA). A row's
// result depends on its own request alone, not on how rows are batched or chunked.
// On CUDA this holds under Sums::batch_invariant only.
// head_dim is a multiple of 8 up to kMaxHeadDim. Tables that name pages or rows out of range throw
// Error on the CPU.
void attention(const Tensor& q, const KvLayer& kv, const PagedBatch& batch, float scale, Tensor y,
               ExecContext& ctx);

// The most that attention() and append_attention() take from the workspace, whatever the number of
// rows.
int64_t attention_workspace_bytes(Device device, int64_t heads, int64_t kv_heads, int64_t head_dim);

}  // namespace sparsellm
