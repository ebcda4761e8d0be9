#pragma once

#include <cstdint>

#include "kernels/base/exec.h"
#include "kernels/paged_kv.h"

namespace sparsellm {

struct AttentionParams {
  float scale = 0.0f;  // above 0, multiplies the products q * k
  // Sliding window (Mistral; Beltagy et al. 2020): the query at position i sees the keys j with
  // i - window < j <= i, itself among them; 0: all keys up to its own.
  int64_t window = 0;
};

// Causal attention of a step's rows over paged keys and values, which already hold this step's
// tokens: prefill and decode rows of several requests in one call.
//   q, y [tokens, heads * head_dim]; q may be a slice of columns; they must not overlap
// heads is a multiple of kv_heads; consecutive query heads share a key/value head (GQA). A row's
// result depends on its own request alone, not on how rows are batched or chunked.
// On CUDA this holds under Sums::batch_invariant only.
// Pages that no row's window reaches are not read, and take no time.
// head_dim is a multiple of 8 up to kMaxHeadDim. Tables that name pages or rows out of range throw
// Error on the CPU.
void attention(const Tensor& q, const KvLayer& kv, const PagedBatch& batch,
               const AttentionParams& params, Tensor y, ExecContext& ctx);

// The most that attention() and append_attention() take from the workspace, whatever the number of
// rows.
int64_t attention_workspace_bytes(Device device, int64_t heads, int64_t kv_heads, int64_t head_dim);

}  // namespace sparsellm
