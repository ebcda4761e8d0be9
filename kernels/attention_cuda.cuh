#pragma once

#include "kernels/attention_device.h"

namespace sparsellm {

// The two kernels of attention_cuda(). Both take what attention() takes.

// Keys and values of a step that are not in their pages yet, as append_attention() takes them;
// none: they are there.
struct NewTokens {
  QkTransform transform;
  Tensor k;
  Tensor v;
};

// Any rows: flash attention (Dao 2023) on tensor cores, one block for a tile of a request's rows
// and the query heads that share a key/value head. The order of a row's sums depends on the row's
// own position and the window alone.
void attention_prefill_cuda(const Tensor& q, const KvLayer& kv, const PagedBatch& batch,
                            const AttentionParams& params, const Tensor& y, ExecContext& ctx);

// batch.decode: one row for each request, split over the keys and values that it sees where rows
// and heads do not fill the GPU (flash-decoding, Dao et al. 2023); the last of the parts adds them
// up. New tokens are put in their pages.
void attention_decode_cuda(const Tensor& q, const NewTokens& tokens, const KvLayer& kv,
                           const PagedBatch& batch, const AttentionParams& params, const Tensor& y,
                           ExecContext& ctx);
// Whether all its thread blocks run at once: then it is faster to let it append the tokens of a
// step than to have a kernel for that before it; else each block would do so when it is late.
bool attention_decode_is_one_wave(int64_t rows, const KvLayer& kv, int64_t heads,
                                  const ExecContext& ctx);

}  // namespace sparsellm
